"""Ambient modes: around a transform, and inside its function."""

import contextlib
import functools
import re

import pytest
import torch
import torch.func
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torchlayers as tl
from tests.support.calls import agree, ambient, run
from tests.support.traced_steps import traced_steps

X = torch.tensor([[0.5, 1.0, 2.0], [1.5, -1.0, 0.3]])


def scalar(f):
    return lambda x: f(x).sum()


def pulled_back(tf, f, x):
    output, vjp_fn = tf.vjp(f, x)
    return output, vjp_fn(torch.ones_like(output))[0]


# Each takes a function from a tensor to a tensor of the same shape.
TRANSFORMS = {
    "grad": lambda tf, f: tf.grad(scalar(f)),
    "vjp": lambda tf, f: functools.partial(pulled_back, tf, f),
    "jvp": lambda tf, f: lambda x: tf.jvp(f, (x,), (torch.ones_like(x),)),
    "vmap": lambda tf, f: tf.vmap(f),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(scalar(f))),
    "grad(grad)": lambda tf, f: tf.grad(scalar(tf.grad(scalar(f)))),
    "jvp(grad)": lambda tf, f: lambda x: tf.jvp(tf.grad(scalar(f)), (x,), (torch.ones_like(x),)),
    "functionalize": lambda tf, f: tf.functionalize(f),
}
REVERSE = [name for name in TRANSFORMS if "grad" in name or name == "vjp"]
transforms = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
reverse = pytest.mark.parametrize("transform", [TRANSFORMS[name] for name in REVERSE], ids=REVERSE)


def f(x):
    return x * x.sin()


@contextlib.contextmanager
def switched(switch, value, back):
    switch(value)
    try:
        yield
    finally:
        switch(back)


MODES = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference mode": torch.inference_mode,
    "no forward grad": lambda: forward_ad._set_fwd_grad_enabled(False),
    "autocast to bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "float64 by default": lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    "meta device by default": lambda: torch.device("meta"),
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "profiler": lambda: profile(activities=[ProfilerActivity.CPU]),
}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def surroundings():
    """ambient(), and further state that a mode may switch."""
    return (
        *ambient(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
    )


@modes
@transforms
def test_a_mode_around_a_transform(transform, mode):
    def call(tf):
        x = X.clone().requires_grad_()
        with mode():
            before = surroundings()
            result = transform(tf, f)(x)
            assert surroundings() == before
        return result

    agree(call)


# Autograd rejects inference tensors, as it does in plain code.
@pytest.mark.parametrize("mode", [MODES[name] for name in MODES if name != "inference mode"])
@transforms
def test_a_mode_inside_the_function(transform, mode):
    def switching(x):
        with mode():
            y = f(x)
        return y * x

    agree(lambda tf: transform(tf, switching)(X))


@reverse
def test_tensors_made_in_inference_mode_are_refused_as_in_plain_code(transform):
    def in_inference_mode(x):
        with torch.inference_mode():
            return f(x) * x

    before = surroundings()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        transform(tl, lambda x: in_inference_mode(x) * x)(X)
    assert surroundings() == before


@modes
@transforms
def test_everything_is_as_it_was_after_an_exception_in_a_mode(transform, mode):
    def fails(x):
        with mode():
            f(x)
            raise ZeroDivisionError

    before = surroundings()
    with pytest.raises(ZeroDivisionError):
        transform(tl, fails)(X)
    assert surroundings() == before


# torch.func's jvp, vmap and functionalize do not restore grad mode; its others, forward grad mode.
@pytest.mark.parametrize(
    "switch", [torch.set_grad_enabled, torch._C._set_fwd_grad_enabled], ids=["grad", "forward"]
)
@pytest.mark.parametrize("error", [None, ZeroDivisionError])
@transforms
def test_mode_left_off_by_the_function_is_restored(transform, switch, error):
    def leaves_it_off(x):
        y = f(x)
        switch(False)
        if error:
            raise error
        return y

    before = surroundings()
    with pytest.raises(error) if error else contextlib.nullcontext():
        transform(tl, leaves_it_off)(X)
    assert surroundings() == before


def test_mode_left_off_inside_holds_until_the_function_ends():
    def leaves_it_off(x):
        torch.set_grad_enabled(False)
        return f(x).sum()

    assert tl.grad(leaves_it_off)(X).tolist() == [[0.0] * 3] * 2


# Autocast. torch.func casts again inside its batching rules, which gives wrong dtypes
# (pytorch#192617), so plain loops and plain autograd are the reference.

torch.manual_seed(0)
WEIGHT = torch.randn(4, 5)
LINEAR = nn.Linear(4, 3)
ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True)


def attention(x):
    return nn.functional.scaled_dot_product_attention(x, x, x)


AUTOCAST = {
    "Linear": (LINEAR, (4,)),
    "Linear of a batch": (LINEAR, (2, 4)),
    "Conv1d": (nn.Conv1d(2, 3, 3), (2, 7)),
    "LayerNorm": (nn.LayerNorm(4), (2, 4)),
    "MultiheadAttention": (lambda x: ATTENTION(x, x, x)[0], (2, 3, 4)),
    "scaled_dot_product_attention": (attention, (2, 3, 4)),
    "dot": (lambda x: torch.dot(x, WEIGHT[:, 0]), (4,)),
    "mv": (lambda x: WEIGHT.t().mv(x), (4,)),
    "matmul": (lambda x: x @ WEIGHT, (2, 4)),
    "addmm": (lambda x: torch.addmm(torch.zeros(2, 5), x, WEIGHT), (2, 4)),
    "einsum": (lambda x: torch.einsum("ij,jk->ik", x, WEIGHT), (3, 4)),
    "softmax, cast up": (lambda x: (x @ WEIGHT).softmax(-1), (2, 4)),
    "cat, cast to the widest": (lambda x: torch.cat([x @ WEIGHT, torch.ones(2, 5)]), (2, 4)),
    "Linear, ReLU, Linear": (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), (2, 4)),
    "Linear, LayerNorm, Linear": (
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)),
        (2, 4),
    ),
}

# Where plain forward mode fails under autocast, and why.
FAILS_PLAINLY = {
    (
        "jvp",
        "Linear, LayerNorm, Linear",
    ): "LayerNorm's tangent is a float32 one of a bfloat16 value",
}


def looped(f, xs):
    return torch.stack([f(x) for x in xs])


def plain_grad(f, x):
    y = x.clone().requires_grad_()
    return torch.autograd.grad(f(y), y)[0]


def plain_vjp(f, x):
    y = x.clone().requires_grad_()
    output = f(y)
    return output.detach(), torch.autograd.grad(output, y, torch.ones_like(output))[0]


def plain_jvp(f, x):
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))))


def float_sum(f):
    return lambda x: f(x).float().sum()


# Each with its reference, computed in plain code on the three samples.
AUTOCAST_TRANSFORMS = {
    "vmap": (tl.vmap, looped),
    "vmap(vmap)": (
        lambda f: lambda xs: tl.vmap(tl.vmap(f))(torch.stack([xs, xs + 1])),
        lambda f, xs: looped(functools.partial(looped, f), torch.stack([xs, xs + 1])),
    ),
    "grad": (
        lambda f: lambda xs: tl.grad(float_sum(f))(xs[1]),
        lambda f, xs: plain_grad(float_sum(f), xs[1]),
    ),
    "vjp": (
        lambda f: lambda xs: pulled_back(tl, f, xs[1]),
        lambda f, xs: plain_vjp(f, xs[1]),
    ),
    "jvp": (
        lambda f: lambda xs: tl.jvp(f, (xs[1],), (torch.ones_like(xs[1]),)),
        lambda f, xs: plain_jvp(f, xs[1]),
    ),
    "vmap(grad)": (
        lambda f: tl.vmap(tl.grad(float_sum(f))),
        lambda f, xs: looped(functools.partial(plain_grad, float_sum(f)), xs),
    ),
    "functionalize": (
        lambda f: lambda xs: tl.functionalize(f)(xs[1]),
        lambda f, xs: f(xs[1]),
    ),
}


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # from attention
@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", AUTOCAST)
@pytest.mark.parametrize("name", AUTOCAST_TRANSFORMS)
def test_autocast_gives_the_dtypes_of_plain_code(name, function, dtype, where):
    transform, plainly = AUTOCAST_TRANSFORMS[name]
    f, shape = AUTOCAST[function]
    torch.manual_seed(0)
    xs = torch.randn(3, *shape)
    autocast = torch.autocast("cpu", dtype)

    def run():
        if where == "inside":
            return transform(autocast(f))(xs)
        with autocast:
            return transform(f)(xs)

    if (name, function) in FAILS_PLAINLY:
        with autocast, pytest.raises(RuntimeError, match=r"same dtype|expected scalar type"):
            plainly(f, xs)
        exact = transform(f)(xs)
        for got, wide in zip(pytree.tree_leaves(run()), pytree.tree_leaves(exact), strict=True):
            assert got.dtype == dtype
            torch.testing.assert_close(got.float(), wide, rtol=0.1, atol=0.05)
        return
    with autocast:
        expected = plainly(f, xs)
    tolerance = 4 * torch.finfo(dtype).eps
    got, expected = (pytree.tree_map(torch.Tensor.detach, result) for result in (run(), expected))
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=2 * tolerance)


def test_rules_are_followed_under_autocast():
    def output(x):
        return torch.nn.functional.linear(x, X).relu().sum()

    with traced_steps() as events, torch.autocast("cpu", torch.bfloat16):
        tl.grad(output)(X)
    rules = {event.op for event in events if event.step == "rule"}
    assert rules == {"aten::_to_copy", "aten::linear", "aten::relu", "aten::sum"}


def under_no_grad(action):
    with torch.no_grad():
        action()


CASTING_THE_WEIGHT = {
    "grad": lambda loss, x: tl.grad(loss)(x),
    "grad in no_grad": lambda loss, x: under_no_grad(lambda: tl.grad(loss)(x)),
    "jvp": lambda loss, x: tl.jvp(loss, (x,), (x,)),
    "vmap": lambda loss, x: tl.vmap(loss)(x),
    "functionalize": lambda loss, x: tl.functionalize(loss)(x),
}


@pytest.mark.parametrize("cast", CASTING_THE_WEIGHT.values(), ids=CASTING_THE_WEIGHT)
def test_a_weight_that_autocast_has_cast_in_a_transform_still_gets_its_gradient(cast):
    """Autocast caches the weights it has cast, and uses them after the transform."""
    x = torch.ones(2, 4)
    module = nn.Linear(4, 3)
    loss = float_sum(module)
    with torch.autocast("cpu", torch.bfloat16):
        cast(loss, x)
        loss(x).backward()
    assert torch.equal(module.weight.grad, torch.full((3, 4), 2.0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="autocast on CUDA needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Linear", "dot", "einsum", "matmul"])
def test_autocast_on_cuda_gives_the_dtypes_of_plain_code(name, dtype):
    shape = AUTOCAST[name][1]
    weight = WEIGHT.cuda()
    f = {
        "Linear": nn.Linear(4, 3).cuda(),
        "dot": lambda x: torch.dot(x, weight[:, 0]),
        "einsum": lambda x: torch.einsum("ij,jk->ik", x, weight),
        "matmul": lambda x: x @ weight,
    }[name]
    xs = torch.randn(3, *shape, device="cuda")
    with torch.autocast("cuda", dtype):
        torch.testing.assert_close(tl.vmap(f)(xs), looped(f, xs), rtol=2e-2, atol=2e-2)


# Modes written in Python


class Functions(TorchFunctionMode):
    """Records the functions called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Records the operators run, and the levels active at the time."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((str(func), len(tl.current_stack())))
        return func(*args, **(kwargs or {}))


def agree_on_operators(call):
    """Like agree, for a call that returns its result and a list of the operators called for it.

    Rules call no more operators than torch does; jvp's rules call fewer than its forward AD.
    """
    with traced_steps() as events:
        _, ours = run(call, tl)
    if any(event.step == "rule" for event in events):
        agree(lambda tf: call(tf)[0])
        _, theirs = run(call, torch.func)
        assert 0 < len(ours) <= len(theirs)
    else:
        agree(call)
    return ours


@transforms
def test_a_torch_function_mode_around_sees_what_the_function_calls(transform):
    with Functions() as mode:
        transform(tl, f)(X)
    assert [name for name in mode.seen if name in ("sin", "mul")] == ["sin", "mul"]


@transforms
def test_a_torch_function_mode_around_does_not_see_into_operators(transform):
    """As in plain code, PyTorch's own Python code, which computes some derivatives, is hidden."""
    with Functions() as mode:
        transform(tl, f)(X)
    assert not [name for name in mode.seen if "." in name]


@transforms
def test_a_torch_function_mode_inside_sees_what_the_function_calls(transform):
    def call(tf):
        mode = Functions()

        def watched(x):
            with mode:
                return f(x)

        return transform(tf, watched)(X), mode.seen

    assert agree(call)[1] == ["sin", "mul"]


@transforms
def test_a_torch_dispatch_mode_around_sees_torch_funcs_operators(transform):
    def call(tf):
        with Operators() as mode:
            result = transform(tf, f)(X)
        return result, mode.seen

    seen = agree_on_operators(call)
    assert {levels for _, levels in seen} == {0}


@transforms
def test_a_torch_dispatch_mode_inside_sees_torch_funcs_operators(transform):
    def call(tf):
        mode = Operators()

        def watched(x):
            with mode:
                return f(x)

        return transform(tf, watched)(X), mode.seen

    seen = agree_on_operators(call)
    assert ("aten.sin.default", 0) in seen


@transforms
def test_fake_tensors(transform):
    def call(tf):
        with torch._subclasses.FakeTensorMode() as mode:
            result = transform(tf, f)(mode.from_tensor(X))
        return [(type(t), t.shape, t.stride(), t.dtype) for t in pytree.tree_leaves(result)]

    assert {kind for kind, *_ in agree(call)} == {torch._subclasses.FakeTensor}


@transforms
def test_fake_tensors_made_inside_the_function(transform):
    made = []

    def making(x):
        with torch._subclasses.FakeTensorMode():
            made.append(torch.ones(2, 3) @ torch.ones(3, 4))
        return f(x)

    agree(lambda tf: transform(tf, making)(X))
    for tensor in map(torch.func.debug_unwrap, made):
        assert type(tensor) is torch._subclasses.FakeTensor
        assert tensor.shape == (2, 4)


@pytest.mark.parametrize("tracing_mode", ["real", "fake"])
@transforms
def test_make_fx_records_torch_funcs_graph(transform, tracing_mode):
    def record(tf):
        traced = make_fx(transform(tf, f), tracing_mode=tracing_mode)(X)
        # The engine creates the initial ones of our backward; torch.func creates them in Python.
        code = re.sub(r"(ones_like\.default\(\w+), [^)]*\)", r"\1)", traced.code)
        return traced(X + 1), code.splitlines()

    agree_on_operators(record)


@pytest.mark.sweep
@transforms
def test_make_fx_with_symbolic_sizes_records_torch_funcs_operators(transform):
    def record(tf):
        traced = make_fx(transform(tf, f), tracing_mode="symbolic")(X)
        operators = [str(node.target) for node in traced.graph.nodes]
        # torch.func queries the sizes at other points.
        return traced(X + 1), [name for name in operators if "sym_size" not in name]

    agree_on_operators(record)


@transforms
def test_make_fx_inside_the_function(transform):
    agree(lambda tf: transform(tf, lambda x: make_fx(f)(x)(x))(X))


@transforms
def test_deterministic_mode_reaches_the_operators(transform):
    """Uninitialized memory is filled with NaN in deterministic mode."""

    def with_uninitialized_memory(x):
        return f(x) * torch.empty(3)

    with MODES["deterministic"]():
        result = transform(tl, with_uninitialized_memory)(X)
    assert pytree.tree_leaves(result)[-1].isnan().all()


@transforms
def test_the_default_dtype_reaches_the_function(transform):
    made = []

    def making(x):
        made.append(torch.ones(3))
        return f(x) * made[-1]

    with MODES["float64 by default"]():
        agree(lambda tf: transform(tf, making)(X))
    assert {tensor.dtype for tensor in made} == {torch.float64}


@transforms
def test_the_default_device_reaches_the_function_and_nothing_else(transform):
    made = []

    def making(x):
        made.append(torch.ones(2))
        return f(x)

    with torch.device("meta"):
        result = transform(tl, making)(X)
    assert {tensor.device.type for tensor in made} == {"meta"}
    torch.testing.assert_close(result, transform(tl, f)(X))


@pytest.mark.parametrize("name", ["jvp", "vmap", "functionalize"])
def test_saved_tensor_hooks_work_around_and_inside_transforms_over_plain_autograd(name):
    packed = []

    def pack(x):
        packed.append(x)
        return x

    def hooked(x):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            return f(x)

    x = X.clone().requires_grad_()
    agree(lambda tf: TRANSFORMS[name](tf, hooked)(x))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        agree(lambda tf: TRANSFORMS[name](tf, f)(x))
    assert packed


def root(x):
    return x.sqrt()


@reverse
def test_anomaly_detection_finds_nans(transform):
    """With torch.func's message, and the traceback and line of the forward."""

    def found(tf):
        with (
            torch.autograd.set_detect_anomaly(True),
            pytest.warns(UserWarning, match="Error detected in") as warned,
            pytest.raises(RuntimeError) as raised,
        ):
            transform(tf, root)(torch.zeros(2, 3) / 0)
        traces = [str(warning.message) for warning in warned if "Error" in str(warning.message)]
        assert "return x.sqrt()" in traces[0]
        return str(raised.value), traces[0].partition("\n")[0]

    (error, warned), (theirs, warned_by_torch) = found(tl), found(torch.func)
    assert theirs == "Function 'SqrtBackward0' returned nan values in its 0th output."
    line = r"test_modes\.py:\d+, `return x\.sqrt\(\)`"
    assert re.fullmatch(re.escape(theirs) + rf" It was recorded in {line}\.", error)
    assert warned == warned_by_torch


@transforms
def test_the_profiler_sees_torch_funcs_kernels(transform):
    def call(tf):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            result = transform(tf, f)(X)
        counts = {event.key: event.count for event in profiler.key_averages()}
        names = [f"aten::{name}" for name in ("sin", "cos", "mul", "sum", "add")]
        return result, [name for name in names for _ in range(counts.get(name, 0))]

    assert "aten::sin" in agree_on_operators(call)
