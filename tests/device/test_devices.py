"""Every transform on any device: the result is on the device, correct, and computed without
waiting."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

import torchlayers as tl
from tests.support import devices
from tests.support.traced_steps import traced_steps
from torchlayers.core.device import RandomState, free_memory

X = torch.tensor([[0.5, -1.0, 2.0], [0.25, 3.0, -0.5]], dtype=torch.float64)
V = torch.tensor([[1.0, 2.0, -1.0], [0.0, 1.0, 0.5]], dtype=torch.float64)
W = torch.tensor([[1.0, 0.5], [-0.5, 2.0], [0.25, 1.0]], dtype=torch.float64)


def f(x):
    return (torch.tanh(x @ W.to(x)) * x[:, :2].exp()).sum()


TRANSFORMS = {
    "grad": lambda x, v: tl.grad(f)(x),
    "vjp": lambda x, v: tl.vjp(torch.sin, x)[1](v)[0],
    "jvp": lambda x, v: tl.jvp(f, (x,), (v,))[1],
    "jacrev": lambda x, v: tl.jacrev(torch.softmax, chunk_size=2)(x, 1),
    "jacfwd": lambda x, v: tl.jacfwd(lambda x: x.cumsum(0))(x),
    "hessian": lambda x, v: tl.hessian(f)(x),
    "vmap": lambda x, v: tl.vmap(torch.dot)(x, v),
    "vmap(grad)": lambda x, v: tl.vmap(tl.grad(lambda row: (row**3).prod()))(x),
    "grad(grad)": lambda x, v: tl.grad(lambda x: tl.grad(f)(x).norm())(x),
    "jvp(grad)": lambda x, v: tl.jvp(tl.grad(f), (x,), (v,))[1],
    "linearize": lambda x, v: tl.linearize(f, x)[1](v),
    "functionalize": lambda x, v: tl.functionalize(lambda x: x.clone().mul_(2))(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_transform_agrees_with_the_cpu(transform, device):
    """Gives the same as on the CPU."""
    found = transform(X, V)
    assert found.device == device
    with torch.device("cpu"):
        torch.testing.assert_close(found.cpu(), transform(X.cpu(), V.cpu()))


def pulled_by(function, *args):
    with traced_steps() as events:
        result = function(*args)
    return result, {event.op for event in events if event.step == "pull_back"}


def test_torchlayers_runs_the_backward_pass():
    assert pulled_by(tl.grad(f), X)[1] == {"torchlayers"}


# A CPU scalar combined with tensors of the device, which torch allows.
SCALARS = {
    "mul": lambda s, x: x * s,
    "mul from the left": lambda s, x: s * x,
    "add": lambda s, x: x + s,
    "sub of sums": lambda s, x: x.sum() - s,
    "div": lambda s, x: s / (x * x + 1),
    "pow": lambda s, x: (x * x + 1) ** s,
    "where": lambda s, x: torch.where(x > 0, x, s),
    "atan2": lambda s, x: torch.atan2(x, s),
    "maximum": lambda s, x: torch.maximum(x, s),
    "lerp": lambda s, x: torch.lerp(x, x * 2, s),
    "masked_fill": lambda s, x: x.masked_fill(x > 0, s),
    "addcmul": lambda s, x: torch.addcmul(x, x, s),
    "mul in place": lambda s, x: x.clone().mul_(s),
    "to": lambda s, x: s.to(x.device) * x,
}
scalars = pytest.mark.parametrize("program", SCALARS.values(), ids=SCALARS.keys())


def scalar():
    return torch.tensor(1.5, dtype=torch.float64, device="cpu")


@scalars
def test_gradients_by_a_scalar_of_the_processor(program, device):
    by_scalar, by_tensor = tl.grad(lambda s, x: (program(s, x) ** 2).sum(), argnums=(0, 1))(
        scalar(), X
    )
    assert by_scalar.device == torch.device("cpu")
    assert by_tensor.device == device
    s, x = scalar().requires_grad_(), X.clone().requires_grad_()
    expected = torch.autograd.grad((program(s, x) ** 2).sum(), (s, x))
    torch.testing.assert_close((by_scalar, by_tensor), expected)


@scalars
def test_tangents_by_a_scalar_of_the_processor(program, device):
    _, tangent = tl.jvp(lambda s: program(s, X), (scalar(),), (torch.ones_like(scalar()),))
    assert tangent.device == device
    step = 1e-6
    difference = (program(scalar() + step, X) - program(scalar() - step, X)) / (2 * step)
    torch.testing.assert_close(tangent, difference, rtol=1e-6, atol=1e-6)


def conv(x):
    image = torch.ones(2, 3, 6, 6, dtype=x.dtype) * x.sum()
    return F.conv2d(image, torch.ones(4, 3, 3, 3, dtype=x.dtype)).relu().mean()


def attention(x):
    q = x.expand(1, 2, 2, 3)
    return F.scaled_dot_product_attention(q, q.sin(), q.cos()).sum()


def packed(x):
    rows = PackedSequence(x.reshape(6, 1), torch.tensor([2, 2, 1, 1], device="cpu"))
    return pad_packed_sequence(rows, total_length=5)[0].square().sum()


# Derivatives that make the CPU wait are a bug: by reading a number, by a size that depends on
# values, or by copying a Python number to the device.
QUIET = {
    "f": f,
    "layer_norm": lambda x: F.layer_norm(x, (3,)).square().sum(),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True)[0, 0],
    "losses": lambda x: F.cross_entropy(x, torch.zeros(2, dtype=torch.long)) + F.mse_loss(x, x * 2),
    "convolution": conv,
    "attention": attention,
    "order": lambda x: x.sort(1)[0][:, 0].sum() + x.max(1)[0].sum() + x.median(),
    "activations": lambda x: (
        F.gelu(x) + F.silu(x) + F.softplus(x) + F.elu(x) + F.hardtanh(x)
    ).sum(),
    "reductions": lambda x: x.var() + x.std(0).sum() + x.logsumexp(1).sum() + x.prod() + x.norm(),
    "indexing": lambda x: x[:, 1].sum() + x.gather(1, torch.zeros_like(x, dtype=torch.long)).sum(),
    "clamps": lambda x: x.clamp(-1, 1).sum() + x.abs().sum() + x.clamp(min=0.0).prod(),
    "cumulative": lambda x: x.cumsum(1).cumprod(0).sum() + x.logcumsumexp(0).sum(),
    "linear algebra": lambda x: (x @ x.T).trace() + torch.linalg.vector_norm(x, 3),
    "packed": packed,
    "stacks": lambda x: torch.stack([x, x * 2]).sum() + torch.cat([x, x.sin()]).prod(),
}
DERIVATIVES = {
    "grad": lambda f: tl.grad(f)(X),
    "jvp": lambda f: tl.jvp(f, (X,), (V,)),
    "hessian": lambda f: tl.hessian(f)(X),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f))(X.expand(3, 2, 3)),
}


@pytest.mark.accelerator
@pytest.mark.parametrize("program", QUIET.values(), ids=QUIET.keys())
@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES.keys())
def test_derivative_does_not_wait_for_the_device(program, derivative):
    """Programs for which autograd does not wait either, apart from random numbers, linear solvers
    and masks."""
    derivative(program)  # fills the caches
    with devices.nothing_waits(), devices.no_hazards():
        derivative(program)


@pytest.mark.accelerator
def test_key_does_not_wait_for_the_device():
    def noisy(x):
        return (x * torch.randn_like(x)).sum()

    with devices.nothing_waits(), devices.no_hazards():
        key = tl.random.key(0)
        tl.vmap(tl.grad(noisy), randomness="keyed", key=key)(X)


@pytest.mark.accelerator
def test_cached_memory_counts_as_free(device):
    before = free_memory(device)
    torch.empty(2**26, dtype=torch.uint8)
    assert abs(free_memory(device) - before) < 2**25


def test_accelerator_first_used_later_has_initial_random_state(monkeypatch):
    """Its generators are at their initial state."""
    module = SimpleNamespace(
        default_generators=(torch.Generator(device="cpu"),),
        device_count=lambda: 1,
        get_rng_state=lambda i: module.default_generators[i].get_state(),
    )
    modules = [None, module]
    monkeypatch.setattr("torchlayers.core.device._accelerator_in_use", lambda: modules[-1])
    draw = lambda: torch.rand(3, device="cpu", generator=module.default_generators[0])  # noqa: E731
    module.default_generators[0].manual_seed(7)
    modules.append(None)
    state = RandomState()
    modules.pop()
    drawn = draw()
    assert not state.is_now()
    state.restore()
    torch.testing.assert_close(draw(), drawn)


@pytest.mark.accelerator
@pytest.mark.parametrize("depth", [1, 20])
def test_memory_is_at_most_autograds(depth):
    layers = [torch.randn(64, 64) for _ in range(depth)]
    x = torch.randn(128, 64)

    def loss(x):
        for layer in layers:
            x = torch.tanh(x @ layer)
        return x.sum()

    def by_autograd():
        y = x.clone().requires_grad_()
        return torch.autograd.grad(loss(y), y)

    assert devices.peak_bytes(lambda: tl.grad(loss)(x)) <= devices.peak_bytes(by_autograd)


@pytest.mark.accelerator
def test_peak_bytes_counts_the_peak():
    def work():
        for _ in range(3):
            torch.empty(64, 64), torch.empty(64, 64)
        torch.empty(128, 64)

    assert devices.peak_bytes(work) == 2 * 64 * 64 * torch.empty(()).itemsize


NETWORKS = [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN]
ON_SEQUENCES = {
    "vmap": lambda f, xs: tl.vmap(f)(xs),
    "vmap(grad)": lambda f, xs: tl.vmap(tl.grad(f))(xs),
    "jvp": lambda f, xs: tl.jvp(f, (xs[0],), (xs[1],))[1],
    "hessian": lambda f, xs: tl.hessian(f)(xs[0]),
}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("derivative", ON_SEQUENCES.values(), ids=ON_SEQUENCES.keys())
def test_recurrent_networks(kind, derivative, device):
    """A GPU has other kernels for them, which support a single reverse pass."""
    module = kind(3, 2, dtype=torch.float64).requires_grad_(False)
    xs = torch.linspace(-1, 1, 18, dtype=torch.float64).view(2, 3, 3).sin()
    found = derivative(lambda x: module(x)[0].square().sum(), xs)
    with torch.device("cpu"):
        same = kind(3, 2, dtype=torch.float64).requires_grad_(False)
        same.load_state_dict({name: x.cpu() for name, x in module.state_dict().items()})
        expected = derivative(lambda x: same(x)[0].square().sum(), xs.cpu())
    torch.testing.assert_close(found.cpu(), expected)


WAITS = {
    "a number": lambda: X.sum().item(),
    "a copy": lambda: X.cpu(),
    "how many there are": lambda: X.nonzero(),
    "a mask": lambda: X[X > 0],
    "an event": lambda: torch.accelerator.current_stream().record_event().synchronize(),
    "a stream": lambda: torch.accelerator.current_stream().synchronize(),
    "a device": torch.accelerator.synchronize,
}


@pytest.mark.only_on("second")  # a GPU reports only the first four
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_nothing_waits_detects_waiting(wait):
    with pytest.raises(RuntimeError, match="makes the host wait"), devices.nothing_waits():
        wait()


@pytest.mark.only_on("cuda")
@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES.keys())
def test_a_cuda_graph(derivative):
    """Forward, backward and an update, captured and replayed; each replay continues from the
    last."""
    x = X.clone()

    def step():
        y = tl.grad(f)(x)
        x.sub_(y, alpha=0.1)
        return derivative(f)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    expected = X.clone()
    for _ in range(4):
        expected = expected - 0.1 * tl.grad(f)(expected)
    for _ in range(3):
        graph.replay()
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(found, derivative(f))


@pytest.mark.accelerator
def test_autocast_on_the_device(device):
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with torch.autocast(device.type, torch.bfloat16):
        (expected,) = torch.autograd.grad((x.requires_grad_() @ w).sum(), x)
        gradient = tl.grad(lambda x: (x @ w).sum())(x.detach())
    torch.testing.assert_close(gradient, expected)
