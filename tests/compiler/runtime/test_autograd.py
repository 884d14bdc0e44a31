"""A compiled function under plain autograd."""

import functools

import pytest
import torch
from torch import nn

import torchlayers as tl
from torchlayers.core import pytree

replayed = functools.partial(tl.compile, backend="replay")


def gradients(f, x, order):
    """Returns f(x) and the derivatives of f's sum up to the given order."""
    found = [f(x)]
    for _ in range(order):
        found += torch.autograd.grad(found[-1].sum(), x, create_graph=True)
    return found


class Straight(torch.autograd.Function):
    """Rounds, with the identity's gradient (a straight-through estimator)."""

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


FUNCTIONS = {
    "elementwise": lambda x: x.sin() * x.exp(),
    "a product": lambda x: (x.outer(x) @ x).tanh(),
    "a gradient": tl.grad(lambda x: (x.sin() * x).sum()),
    "a hessian": lambda x: tl.hessian(lambda x: (x @ x).sin())(x).sum(0),
    "vmap": tl.vmap(lambda x: x**3),
    "a part without gradients": lambda x: x.sin() * x.detach().cos(),
    "no_grad inside": lambda x: x.sin() * torch.no_grad()(torch.cos)(x),
    "an autograd.Function": lambda x: Straight.apply(x * 3) * x,
    "plain autograd inside": lambda x: (
        x * torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0]
    ),
    "a write inside": lambda x: x.clone().mul_(x).sin_(),
}


@pytest.mark.sweep
@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_functions_are_differentiable_twice(name, size):
    f = FUNCTIONS[name]
    x = torch.linspace(0.5, 1.5, size, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(gradients(replayed(f), x, 2), gradients(f, x, 2))


SHARED = torch.ones(3, dtype=torch.float64, requires_grad=True)
VIEWS = {
    "detached": lambda x: x.detach(),
    "a part, detached": lambda x: x.detach()[1:],
    "the same, and detached": lambda x: (x.view_as(x), x.detach(), x * 2, x[:]),
    "captured": lambda x: (SHARED.detach()[1:], SHARED.view_as(SHARED), SHARED[1:]),
    "of another result": lambda x: (lambda y: (y.detach(), y, y.view_as(y)))(x * 2),
}


def shared(*tensors):
    """Returns, for each pair of tensors, whether they share memory."""
    memories = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[one == other for one in memories] for other in memories]


@pytest.mark.sweep
@pytest.mark.parametrize("backend", ["replay", "inductor"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_require_grad_as_they_do_uncompiled(name, backend):
    f = VIEWS[name]
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    compiled = tl.compile(f, backend=backend)
    for _ in range(2):
        found, expected = ([*pytree.leaves(g(x))] for g in (compiled, f))
        assert [y.requires_grad for y in found] == [y.requires_grad for y in expected]
        assert len({x, *found}) == 1 + len(found)
        assert shared(x, SHARED, *found) == shared(x, SHARED, *expected)
        for one, other in zip(found, expected, strict=True):
            if other.requires_grad:
                gradients = (
                    torch.autograd.grad(
                        y.sum(), [x, SHARED], materialize_grads=True, retain_graph=True
                    )
                    for y in (one, other)
                )
                torch.testing.assert_close(*gradients)


@pytest.mark.sweep
@pytest.mark.parametrize("draws", [False, True])
def test_values_dropped_by_a_checkpoint_are_not_saved(draws):
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(32, 4, dtype=torch.float64, requires_grad=True)

    def block(x):
        x = (x @ weight).tanh().exp().sin()
        return nn.functional.dropout(x, 0.5) if draws else x

    def network(block):
        def run(x):
            for _ in range(5):
                x = block(x)
            return x.sum()

        return run

    saved, gradients = [], []
    for layer in (block, tl.checkpoint(block)):
        torch.manual_seed(0)
        result = replayed(network(layer))(x)
        kept = {tensor.data_ptr(): tensor.nbytes for tensor in result.grad_fn.saved_tensors}
        saved.append(sum(kept.values()) / x.nbytes)
        gradients.append(torch.autograd.grad(result, [x, weight]))
    torch.testing.assert_close(gradients[1], gradients[0])
    # Each block's input and the weight; random draws are saved with and without checkpoints.
    assert saved[1] <= (saved[0] if draws else 5 + 1 / 8)
    assert saved[0] > 9


def test_compiled_function_is_differentiable_four_times():
    def f(x):
        return x.sin() * x

    x = torch.linspace(0.5, 1.5, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(gradients(replayed(f), x, 4), gradients(f, x, 4))


def test_optimizer_trains_parameters_through_a_compiled_function():
    torch.manual_seed(0)
    module, other = nn.Linear(3, 1), nn.Linear(3, 1)
    other.load_state_dict(module.state_dict())
    compiled = replayed(lambda x, y: (module(x) - y).square().mean())
    for net, loss in [(module, compiled), (other, lambda x, y: (other(x) - y).square().mean())]:
        torch.manual_seed(1)
        optimizer = torch.optim.Adam(net.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss(torch.randn(4, 3), torch.randn(4, 1)).backward()
            optimizer.step()
    torch.testing.assert_close(module.state_dict(), other.state_dict())
    assert len(compiled.report().signatures) == 1


def test_parameters_have_second_derivatives():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    params = [*net.parameters()]
    x = torch.randn(4, 2, dtype=torch.float64)

    def twice(f):
        first = torch.autograd.grad(f(x).sum(), params, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), params, allow_unused=True)

    torch.testing.assert_close(twice(replayed(net)), twice(net))


def test_batch_norm_in_training():
    torch.manual_seed(0)
    module, other = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    compiled = replayed(module)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    for net, f in ((module, compiled), (other, other)):
        (gradient,) = torch.autograd.grad(f(x).pow(3).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        net.found = gradient, net.weight.grad
    torch.testing.assert_close(module.found, other.found)
    torch.testing.assert_close(module.state_dict(), other.state_dict())  # written to once


def test_dropout_mask_is_the_same_in_every_derivative():
    def f(x):
        return nn.functional.dropout(x, 0.5).pow(3)

    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    compiled = replayed(f)
    for found in (compiled, f):
        torch.manual_seed(0)
        found.results = gradients(found, x, 2)
        found.next = torch.rand(3)
    torch.testing.assert_close(compiled.results, f.results)
    torch.testing.assert_close(compiled.next, f.next)


def test_outputs_that_are_not_used_and_those_without_gradients():
    def f(x):
        return {"used": x.sin(), "unused": x.cos(), "index": x.argmax(), "cut": x.detach() * 2}

    x = torch.tensor([0.5, 1.0], requires_grad=True)
    result = replayed(f)(x)
    assert [name for name, value in result.items() if value.requires_grad] == ["used", "unused"]
    (gradient,) = torch.autograd.grad(result["used"].sum(), x)
    torch.testing.assert_close(gradient, x.cos())


def test_an_input_that_the_result_does_not_depend_on_has_no_gradient():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    result = replayed(lambda x, y: x * 2)(x, y)
    assert torch.autograd.grad(result.sum(), [x, y], allow_unused=True)[1] is None


def test_retained_graphs_run_again_and_others_do_not():
    x = torch.ones(2, requires_grad=True)
    result = replayed(torch.exp)(x).sum()
    result.backward(retain_graph=True)
    result.backward()
    torch.testing.assert_close(x.grad, 2 * torch.ones(2).exp())
    with pytest.raises(RuntimeError, match="second time"):
        result.backward()


def test_saved_tensors_are_freed_by_the_backward():
    x = torch.ones(300, requires_grad=True)
    result = replayed(lambda x: x.exp().sin().exp())(x)
    node = result.grad_fn
    result.sum().backward()
    with pytest.raises(RuntimeError, match="freed"):
        _ = node.saved_tensors


def test_cotangents_may_have_any_strides():
    x = torch.randn(3, 4, requires_grad=True)
    compiled = replayed(lambda x: x.sin())
    for cotangent in (torch.randn(4, 3).t(), torch.ones(()).expand(3, 4), torch.randn(6, 4)[::2]):
        (gradient,) = torch.autograd.grad(compiled(x), x, cotangent)
        torch.testing.assert_close(gradient, cotangent * x.cos())


def test_batched_cotangents():
    x = torch.randn(3, requires_grad=True)
    basis = torch.eye(3)
    (rows,) = torch.autograd.grad(replayed(torch.sin)(x), x, basis, is_grads_batched=True)
    torch.testing.assert_close(rows, x.cos().diag())


def test_results_have_no_autograd_graph_without_grad_mode():
    x = torch.ones(2, requires_grad=True)
    compiled = replayed(lambda x: x @ x)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad


def test_detached_results_do_not_require_grad():
    weight = nn.Parameter(torch.randn(3, 3))
    x = torch.randn(3)
    compiled = replayed(lambda x: (weight @ x).argmax())
    assert compiled(x) == (weight @ x).argmax()


def test_checkpointing():
    from torch.utils.checkpoint import checkpoint

    x = torch.linspace(0, 1, 5, requires_grad=True)
    compiled = replayed(lambda x: x.exp().sin())
    for _ in range(2):
        result = checkpoint(compiled, x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(gradient, x.exp().cos() * x.exp())


def test_autocast_inside_and_outside():
    weight = nn.Parameter(torch.randn(3, 3))

    def f(x):
        with torch.autocast("cpu", enabled=False):
            exact = x @ weight
        return exact.sum() + (x @ weight).sum()

    compiled, x = replayed(f), torch.randn(3, 3)
    for found in (compiled, f):
        with torch.autocast("cpu", torch.bfloat16):
            result = found(x)
        found.results = result, *torch.autograd.grad(result, weight)
    torch.testing.assert_close(compiled.results, f.results)


def test_a_written_argument_that_requires_grad_is_refused_as_without_compile():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(tl.errors.TransformError, match=r"requires grad, which .* x.add_\(1\)"):
        replayed(lambda x: x.add_(1))(x)


def test_cotangents_of_results_whose_elements_share_memory():
    x = torch.ones(3, requires_grad=True)
    for f in (lambda x: x.sin().expand(2, 3), lambda x: (x.sin().expand(4, 3), x[:1].expand(5))):
        for compiled in (f, replayed(f)):
            leaves = tl.tree.leaves(compiled(x))
            gradient = torch.autograd.grad(sum(leaf.sum() for leaf in leaves), x)
            torch.testing.assert_close(
                gradient, torch.autograd.grad(sum(leaf.sum() for leaf in tl.tree.leaves(f(x))), x)
            )


def test_cotangents_that_are_conjugated_lazily():
    f = lambda x: torch.view_as_real(torch.complex(x, -x)).sin()  # noqa: E731
    g = lambda f, x: f(x.conj().imag)  # noqa: E731
    z = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    found = [torch.autograd.grad(g(f, z).sum(), z) for f in (f, replayed(f))]
    torch.testing.assert_close(*found)
    double = lambda z: z * z  # noqa: E731
    found = [torch.autograd.grad(f(z).conj().imag.sum(), z) for f in (double, replayed(double))]
    torch.testing.assert_close(*found)


def test_unused_random_numbers_are_drawn_once_in_the_forward():
    def f(x):
        torch.rand(3)
        return x.sin()

    after = []
    for func in (f, replayed(f)):
        torch.manual_seed(0)
        y = func(torch.ones(3, requires_grad=True))
        after.append(torch.rand(1))
        y.sum().backward()
        after.append(torch.rand(1))
    assert after[:2] == after[2:]


# A function whose reverse pass can't be captured runs uncompiled: it may never be differentiated.


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*runs uncompiled when autograd is enabled")
def test_function_without_a_capturable_reverse_pass_runs_uncompiled():
    def func(x: torch.Tensor) -> torch.Tensor:
        return torch.vander(x, 4)  # which reads values that it has overwritten

    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    compiled = tl.compile(func)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), func(x))
    (entry,) = compiled.report().signatures
    assert entry.how.startswith("as it is (its reverse pass can't be captured: ")
    torch.testing.assert_close(compiled(x.detach()), func(x.detach()))
    assert compiled.report().signatures[1].how == "inductor"


@pytest.mark.parametrize("grad", [False, True])
def test_function_that_makes_a_parameter_runs_uncompiled(grad):
    def func(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight = nn.Parameter(x.detach().cos())
        return x.sin(), weight, weight * x

    compiled = tl.compile(func, backend="replay")
    x, expected_x = (torch.ones(2, requires_grad=grad) for _ in range(2))
    with pytest.warns(
        UserWarning,
        match="func runs uncompiled when autograd is enabled: .* a tensor that requires grad",
    ) as warned:
        for _ in range(2):
            results, expected = compiled(x), func(expected_x)
            assert isinstance(results[1], nn.Parameter) and results[1].is_leaf
            torch.testing.assert_close(results, expected)
            assert [each.requires_grad for each in results] == [grad, True, True]
            for _, weight, product in (results, expected):
                product.sum().backward()
                assert weight.grad.tolist() == [1, 1]
            torch.testing.assert_close(x.grad, expected_x.grad)
    assert len(warned) == 1


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.filterwarnings("ignore:Error detected")
def test_anomaly_detection_finds_nan_at_the_call():
    compiled = tl.compile(lambda x: x.sqrt() * 0, backend="replay")
    for value, is_nan in ((1.0, False), (0.0, True), (1.0, False)):
        x = torch.full((3,), value, requires_grad=True)
        with torch.autograd.detect_anomaly():
            result = compiled(x).sum()
            if is_nan:
                with pytest.raises(RuntimeError, match="returned nan"):
                    result.backward()
            else:
                result.backward()
