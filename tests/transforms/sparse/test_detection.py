"""Patterns of functions with structure, as facts; branches, Functions, nests, and errors."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchlayers as tl
from torchlayers.errors import (
    ArgnumsError,
    DtypeError,
    NotScalarError,
    NotTensorError,
    OutputError,
    TransformError,
)
from torchlayers.transforms.sparse.detection.index_sets import IndexSets
from torchlayers.transforms.sparse.detection.layer import Call, rule

X = torch.arange(1.0, 7.0, dtype=torch.float64)
A = torch.tensor([[1.0, 0, 2, 0, 0, 0], [0, 0, 0, 0, 0, 1.0]], dtype=torch.float64)
KERNEL = torch.tensor([[[2.0, 0, 1]]], dtype=torch.float64)
MASK = torch.tensor([0.0, 1, 0, 1, 1, 0], dtype=torch.float64)
REVERSED = "x....x .x..x. ..xx.. ..xx.. .x..x. x....x"
ALL = " ".join(["xxxxxx"] * 6)

# Of each, its pattern for all inputs. Those of asdex 0.5.1 are the same, but for the convolution,
# of which it does not use the zero in the kernel (16 entries), and solve, which it does not know.
JACOBIANS = {
    "differences": (lambda x: (x[1:] - x[:-1]) ** 2, "xx.... .xx... ..xx.. ...xx. ....xx"),
    "roll": (lambda x: x * x.roll(1), "x....x xx.... .xx... ..xx.. ...xx. ....xx"),
    "constant matrix": (lambda x: A @ x, "x.x... .....x"),
    "constant factor": (lambda x: x * MASK, "...... .x.... ...... ...x.. ....x. ......"),
    "index": (lambda x: x[[3, 1, 1]], "...x.. .x.... .x...."),
    "where": (lambda x: torch.where(x > 2, x, x.flip(0)), REVERSED),
    "cumsum": (lambda x: x.cumsum(0), "x..... xx.... xxx... xxxx.. xxxxx. xxxxxx"),
    "sort": (lambda x: x.sort().values, ALL),
    "amax": (lambda x: x.view(2, 3).amax(1), "xxx... ...xxx"),
    "softmax": (
        lambda x: x.view(2, 3).softmax(-1),
        "xxx... xxx... xxx... ...xxx ...xxx ...xxx",
    ),
    "convolution": (
        lambda x: F.conv1d(x.view(1, 1, 6), KERNEL, padding=1),
        ".x.... x.x... .x.x.. ..x.x. ...x.x ....x.",
    ),
    "outer": (
        lambda x: torch.outer(x[:2], x[2:5]),
        "x.x... x..x.. x...x. .xx... .x.x.. .x..x.",
    ),
    "product": (
        lambda x: x.view(2, 3) @ x.view(2, 3).T,
        "xxx... xxxxxx xxxxxx ...xxx",
    ),
    "sign": (
        lambda x: x.sign() * x.flip(0),
        ".....x ....x. ...x.. ..x... .x.... x.....",
    ),
    "floor": (lambda x: x.floor()[:2], "...... ......"),
    "index_add": (
        lambda x: torch.zeros(8).double().index_add(0, torch.tensor([1, 3, 5, 1, 2, 7]), x),
        "...... x..x.. ....x. .x.... ...... ..x... ...... .....x",
    ),
    "pad": (lambda x: F.pad(x[:2], (1, 1)), "...... x..... .x.... ......"),
    "solve": (lambda x: torch.linalg.solve(x[:4].view(2, 2), x[4:]), "xxxxxx xxxxxx"),
    "prod": (lambda x: x.view(3, 2).prod(0), "x.x.x. .x.x.x"),
    "cross product": (lambda x: torch.linalg.cross(x[:3], x[3:]), ".xx.xx x.xx.x xx.xx."),
    "adaptive pooling": (
        lambda x: F.adaptive_avg_pool1d(x.view(1, 1, 6), 4),
        "xx.... .xx... ...xx. ....xx",
    ),
    # The first example of SparseConnectivityTracer.
    "SparseConnectivityTracer": (
        lambda x: torch.stack([x[0] ** 2, 2 * x[0] * x[1] ** 2, x[2].sin()]),
        "x..... xx.... ..x...",
    ),
    "cond": (lambda x: tl.cond(x[0] > 0, lambda y: y, lambda y: y.flip(0), x), REVERSED),
    "torch.cond": (
        lambda x: torch.cond(x[0] > 0, lambda y: 1.0 * y, lambda y: y.flip(0), (x,)),
        REVERSED,
    ),
    "switch": (
        lambda x: tl.switch(x[0].long(), [lambda y: y[:2], lambda y: y[2:4]], x),
        "x.x... .x.x..",
    ),
    "gather by order": (lambda x: x[x.argsort()][:1], "xxxxxx"),
    "in place": (lambda x: _recurrence(x), "...... x..... x.x... x.xx.."),
}
HESSIANS = {
    "rosenbrock": (
        lambda x: ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum(),
        "xx.... xxx... .xxx.. ..xxx. ...xxx ....xx",
    ),
    "squares": (lambda x: (x**2).sum(), "x..... .x.... ..x... ...x.. ....x. .....x"),
    "linear": (lambda x: (A @ x).sum() + x.relu().sum(), " ".join(["......"] * 6)),
    # The Hessian of SparseConnectivityTracer's documentation.
    "SparseConnectivityTracer": (
        lambda x: x[0] + x[1] * x[2] + 1 / x[3] + torch.maximum(x[0], x[4]),
        "...... ..x... .x.... ...x.. ...... ......",
    ),
    "prod": (lambda x: x.prod(), ".xxxxx x.xxxx xx.xxx xxx.xx xxxx.x xxxxx."),
    "logsumexp": (lambda x: x.logsumexp(0), ALL),
    "quadratic": (lambda x: ((A @ x) ** 2).sum(), "x.x... ...... x.x... ...... ...... .....x"),
}
LOCAL = {
    "where": (
        lambda x: torch.where(x > 3, x, x.flip(0)),
        ".....x ....x. ...x.. ...x.. ....x. .....x",
    ),
    "maximum": (lambda x: torch.maximum(x, x.flip(0))[:2], ".....x ....x."),
    "amax": (lambda x: x.amax(), ".....x"),
    "relu": (lambda x: (x - 3).relu()[2:5], "...... ...x.. ....x."),
    "sort": (lambda x: x.flip(0).sort().values[:2], "x..... .x...."),
    "factor": (lambda x: (x[0] - 1) * x[1:3], "x..... x....."),
    "clamp": (lambda x: x.clamp(2.5, 4.5)[1:4], "...... ..x... ...x.."),
    "cond": (lambda x: tl.cond(x[0] > 0, lambda y: y[:2], lambda y: y[2:4], x), "x..... .x...."),
    "max_pool": (lambda x: F.max_pool1d(x.view(1, 1, 6), 3), "..x... .....x"),
}


def _recurrence(x: Tensor) -> Tensor:
    y = torch.zeros(4, dtype=x.dtype)
    for i in range(1, 4):
        y[i] = x[i] * y[i - 1] + x[0]
    return y


def drawn(pattern: tl.SparsityPattern) -> str:
    rows = pattern.to_dense().bool().tolist()
    return " ".join("".join("x" if entry else "." for entry in row) for row in rows)


@pytest.mark.parametrize("name", JACOBIANS)
def test_pattern_of_a_jacobian(name: str) -> None:
    f, expected = JACOBIANS[name]
    pattern = tl.sparsity(f, X)
    assert drawn(pattern) == expected
    assert pattern.unknown == ()


@pytest.mark.parametrize("name", HESSIANS)
def test_pattern_of_a_hessian(name: str) -> None:
    f, expected = HESSIANS[name]
    assert drawn(tl.sparsity(f, X, of="hessian")) == expected


@pytest.mark.parametrize("name", LOCAL)
def test_local_pattern(name: str) -> None:
    f, expected = LOCAL[name]
    assert drawn(tl.sparsity(f, X, local=True)) == expected


def test_locally_a_case_is_that_at_hand() -> None:
    """The example of SparseConnectivityTracer's documentation."""

    def f(x: Tensor) -> Tensor:
        return torch.where(x[1] < x[2], x[0] ** x[1], x[2] * x[3])

    at = [torch.tensor(values) for values in ([1.0, 2, 3, 4], [1.0, 3, 2, 4])]
    assert drawn(tl.sparsity(f, at[0])) == "xxxx"
    assert drawn(tl.sparsity(f, at[0], local=True)) == "xx.."
    assert drawn(tl.sparsity(f, at[1], local=True)) == "..xx"


def test_five_point_stencil() -> None:
    n = 30

    def f(u: Tensor) -> Tensor:
        v = F.pad(u.reshape(n, n), (1, 1, 1, 1))
        around = v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:]
        return (around - 4 * v[1:-1, 1:-1] + u.reshape(n, n).exp()).flatten()

    pattern = tl.sparsity(f, torch.rand(n * n))
    line = torch.diag(torch.ones(n - 1), 1) + torch.diag(torch.ones(n - 1), -1)
    expected = torch.kron(line, torch.eye(n)) + torch.kron(torch.eye(n), line) + torch.eye(n * n)
    assert pattern == tl.SparsityPattern.from_dense(expected)


def test_columns_and_rows_are_those_of_flattened_pytrees() -> None:
    def f(params: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        return params["w"] @ x, params["b"] * 2

    params = {"w": torch.ones(2, 2), "b": torch.ones(1)}
    pattern = tl.sparsity(f, params, torch.ones(2), argnums=(0, 1))
    assert [leaf.numel() for leaf in tl.tree.leaves(params)] == [4, 1]
    assert drawn(pattern) == "xx...xx ..xx.xx ....x.."


def test_arguments_that_are_not_inputs_are_constants() -> None:
    pattern = tl.sparsity(torch.mv, A, X, argnums=1)
    assert drawn(pattern) == "x.x... .....x"
    assert drawn(tl.sparsity(torch.mv, A, X, argnums=-1)) == drawn(pattern)


def test_zeros_written_before_values_are_constant() -> None:
    def f(x: Tensor) -> Tensor:
        matrix = torch.zeros(6, 6, dtype=x.dtype)
        matrix[0, 1] = x[0]
        return (matrix @ x)[:2]

    assert drawn(tl.sparsity(f, X)) == "xx.... ......"


def test_aux_is_ignored() -> None:
    pattern = tl.sparsity(lambda x: (x[:1], "aux"), X, has_aux=True)
    assert drawn(pattern) == "x....."
    pattern = tl.sparsity(lambda x: (x[0] * x[1], x), X, of="hessian", has_aux=True)
    assert pattern.nnz == 2


class StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return g


class InNumPy(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return torch.from_numpy(g.numpy() * 2)


def test_function_has_the_structure_of_its_backward() -> None:
    pattern = tl.sparsity(StraightThrough.apply, X)
    assert drawn(pattern) == drawn(tl.sparsity(lambda x: x * 1, X))
    assert pattern.unknown == ()


def test_function_under_vmap_has_its_structure_by_sample() -> None:
    batched = tl.vmap(lambda x: StraightThrough.apply(x.cumsum(0)))
    assert drawn(tl.sparsity(lambda x: batched(x.view(3, 2)), X)) == (
        "x..... xx.... ..x... ..xx.. ....x. ....xx"
    )


def test_function_computed_elsewhere_is_dense_and_named() -> None:
    pattern = tl.sparsity(lambda x: InNumPy.apply(x[:3]), X)
    assert drawn(pattern) == "xxx... xxx... xxx..."
    assert pattern.unknown == ("InNumPy",)


def test_custom_operator_has_the_structure_of_its_registered_backward() -> None:
    @torch.library.custom_op("torchlayers_tests::running", mutates_args=())
    def running(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy().cumsum())

    running.register_autograd(lambda ctx, g: g.flip(0).cumsum(0).flip(0))
    assert drawn(tl.sparsity(lambda x: running(x[:3]), X)) == "x..... xx.... xxx..."


def test_indices_that_vary_choose_between_structures_of_a_custom_operator() -> None:
    @torch.library.custom_op("torchlayers_tests::picked", mutates_args=())
    def picked(x: Tensor, places: Tensor) -> Tensor:
        return x[places]

    picked.register_autograd(
        lambda ctx, g: (torch.zeros_like(g).index_add(0, ctx.saved_tensors[0], g), None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
    )
    x = X[:3].flip(0)

    def by_size(x: Tensor) -> Tensor:
        return picked(x, x.argsort())

    assert drawn(tl.sparsity(by_size, x)) == "xxx xxx xxx"
    assert drawn(tl.sparsity(by_size, x, local=True)) == "..x .x. x.."
    assert drawn(tl.sparsity(lambda x: picked(x, torch.tensor([1, 0, 1])), x)) == ".x. x.. .x."


def test_loop_depends_on_what_any_number_of_trips_brings() -> None:
    def spread(x: Tensor) -> Tensor:
        return tl.while_loop(
            lambda y: y.sum() > 1, lambda y: torch.cat([y[:1], (y[1:] + y[:-1]) / 2]), x
        )

    pattern = tl.sparsity(spread, X[:4] / 100)  # here the loop makes no trip
    assert drawn(pattern) == "x... xx.. xxx. xxxx"
    assert pattern.unknown == ()


def test_derivative_of_a_loop_is_dense_and_named() -> None:
    def energy(x: Tensor) -> Tensor:
        return tl.while_loop(lambda y: y.sum() > 1, lambda y: y * y / 2, x).sum()

    pattern = tl.sparsity(energy, X, of="hessian")
    assert pattern.nnz == 36
    assert pattern.unknown == ("while_loop",)


def test_loop_of_known_length_is_unrolled() -> None:
    def f(x: Tensor) -> Tensor:
        return tl.fori_loop(0, 2, lambda i, y: torch.cat([y[:1], y[1:] + y[:-1]]), x)

    assert drawn(tl.sparsity(f, X[:4])) == "x... xx.. xxx. .xxx"


def test_values_that_python_reads_are_warned_of() -> None:
    def f(x: Tensor) -> Tensor:
        return x[:2] if x.sum() > 0 else x[2:4]

    with pytest.warns(UserWarning, match=r"same path.*test_detection.py:\d+, `return x\[:2\]"):
        pattern = tl.sparsity(f, X)
    assert drawn(pattern) == "x..... .x...."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tl.sparsity(f, X, local=True)


def test_inside_and_outside_of_other_transforms() -> None:
    def f(x: Tensor) -> Tensor:
        return tl.vmap(tl.grad(lambda y: y.prod()))(x.view(3, 2))

    assert drawn(tl.sparsity(f, X)) == ".x.... x..... ...x.. ..x... .....x ....x."
    found = []

    def noted(x: Tensor) -> Tensor:
        found.append(tl.sparsity(torch.cumsum, x, 0))
        return x.sum()

    tl.vmap(tl.grad(noted))(X.view(3, 2))
    assert drawn(found[0]) == "x. xx"


def test_locally_under_vmap_a_batched_value_may_be_any() -> None:
    found = []

    def noted(x: Tensor) -> Tensor:
        found.append(tl.sparsity(lambda x: torch.where(x > 3, x, x.flip(0)), x, local=True))
        return x

    tl.vmap(noted)(X.view(3, 2))
    assert drawn(found[0]) == "xx xx"


@torch.library.custom_op("torchlayers_tests::doubled_pattern", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda ctx, g: g * 2)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_rule_can_not_read_memory_that_a_tensor_of_a_transform_lacks() -> None:
    """Its values are wrappers of the transforms around; the kernel crashed the interpreter."""

    @rule(torch.ops.torchlayers_tests.doubled_pattern.default)
    def reads(call: Call) -> IndexSets:
        torch.zeros(4).add_(call.arguments["x"].value)
        return call.parts()[0]

    def total(x: Tensor) -> Tensor:
        return tl.jacrev(lambda x: doubled(x) + x, sparse=True)(x).to_dense().sum()

    with pytest.raises(TransformError, match="where transforms are off"):
        tl.vmap(tl.grad(total))(torch.rand(1, 4))


def test_random_numbers_vary() -> None:
    torch.manual_seed(0)
    assert tl.sparsity(lambda x: F.dropout(x), X).nnz == 6
    assert tl.sparsity(lambda x: x * (torch.rand(6) > 0.5), X).nnz == 6
    assert tl.sparsity(lambda x: x[torch.randperm(6)], X).nnz == 36
    kept = F.dropout(X)
    torch.manual_seed(0)
    assert tl.sparsity(lambda x: F.dropout(x), X, local=True).nnz < 6
    assert kept.count_nonzero() < 6


ERRORS = {
    "not a tensor": (lambda: tl.sparsity(torch.sin, 1.0), NotTensorError, "argument 0"),
    "integers": (lambda: tl.sparsity(torch.sin, torch.arange(3)), DtypeError, "floating-point"),
    "complex": (lambda: tl.sparsity(torch.sin, X + 1j), DtypeError, "real"),
    "complex output": (lambda: tl.sparsity(lambda x: x + 1j, X), DtypeError, "view_as_real"),
    "no output": (lambda: tl.sparsity(lambda x: None, X), OutputError, "tensors|nothing"),
    "no scalar": (lambda: tl.sparsity(torch.sin, X, of="hessian"), NotScalarError, "scalar"),
    "argnums": (lambda: tl.sparsity(torch.sin, X, argnums=1), ArgnumsError, "argnums=1"),
    "of": (lambda: tl.sparsity(torch.sin, X, of="gradient"), TransformError, "'gradient'"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, error, words = ERRORS[name]
    with pytest.raises(error, match=words):
        call()
    assert tl.current_stack() == ()


def test_stack_is_restored_after_an_error() -> None:
    def f(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tl.sparsity(f, X)
    assert tl.current_stack() == ()
