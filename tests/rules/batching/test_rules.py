"""Every batching rule of ours against torch's, and against the samples one by one."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.func
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.rules.batching.samples import CUBES, SAMPLES, A, V, X, values
from tests.support.rule_tables import BATCHING

# Some calls have no batching rule in torch and use its fallback.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

BATCH = 4

CALLS = [
    pytest.param(name, f, tensors, id=f"{name}-{i}")
    for name, samples in SAMPLES.items()
    for i, (f, tensors) in enumerate(samples)
]


def stacked(tensor: Tensor, dim: int) -> Tensor:
    """Different samples, stacked at this dimension."""
    return torch.stack([tensor * (1 + 0.1 * i) for i in range(BATCH)], dim)


def batches(tensors: list[Tensor]) -> list[tuple[list[Tensor], tuple[int | None, ...]]]:
    """The tensors with every choice of which are batched, with the batch first or last."""
    return [
        (
            [x if dim is None else stacked(x, dim) for x, dim in zip(tensors, dims, strict=True)],
            dims,
        )
        for dims in itertools.product((None, 0, -1), repeat=len(tensors))
        if set(dims) != {None}
    ]


def one_by_one(f: Callable[..., Any], args: list[Tensor], dims: tuple[int | None, ...]) -> Any:
    """The reference for vmap: a loop."""
    each = [
        f(*(x if dim is None else x.select(dim, i) for x, dim in zip(args, dims, strict=True)))
        for i in range(BATCH)
    ]
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *each)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        pytree.tree_leaves(found), pytree.tree_leaves(expected), equal_nan=True
    )


def test_samples_are_of_all_rules() -> None:
    assert {f"aten::{name}" for name in SAMPLES} == set(BATCHING.operators)


@pytest.mark.parametrize(("name", "f", "tensors"), CALLS)
def test_is_every_sample_by_itself(name: str, f: Callable[..., Any], tensors: list[Tensor]) -> None:
    for args, dims in batches(tensors):
        close(tl.vmap(f, in_dims=dims)(*args), one_by_one(f, args, dims))


@pytest.mark.parametrize("name", SAMPLES)
def test_rule_is_followed(name: str) -> None:
    found: set[str] = set()
    with BATCHING.followed(found):
        for f, tensors in SAMPLES[name]:
            for args, dims in batches(tensors):
                tl.vmap(f, in_dims=dims)(*args)
    assert f"aten::{name}" in found


# Operators for which torch's rule has a wrong gradient, or none.
WRONG_IN_TORCH = {
    "select_scatter",
    "as_strided_scatter",
    "as_strided_",
    "_neg_view",
    "_fw_primal",
    "_make_dual",
    "_unpack_dual",
    "index_put_",
    "_index_put_impl_",
    "_pack_padded_sequence",
    "_cdist_backward",
    "linalg_lu_solve",
    "_linalg_solve_ex",
    "lu_unpack",
    "native_batch_norm_backward",
    "native_group_norm_backward",
}


@pytest.mark.parametrize(("name", "f", "tensors"), CALLS)
def test_is_differentiated_as_torchs(
    name: str, f: Callable[..., Any], tensors: list[Tensor]
) -> None:
    """Derivatives around vmap: the operators called by a rule have the right ones."""

    def total(batched: Callable[..., Any], *args: Tensor) -> Tensor:
        results = pytree.tree_leaves(batched(*args))
        return sum(
            ((y.abs() if y.is_complex() else y).sin().sum() for y in results if not _counts(y)),
            torch.zeros((), dtype=torch.float64),
        )

    args = [stacked(x, 0) for x in tensors]
    gradients = tl.grad(total, tuple(range(1, len(args) + 1)))
    if name in WRONG_IN_TORCH:
        expected = gradients(lambda *args: one_by_one(f, list(args), (0,) * len(args)), *args)
    else:
        with BATCHING.switched_off(BATCHING.operators):
            expected = gradients(tl.vmap(f), *args)
    close(gradients(tl.vmap(f), *args), expected)


def _counts(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


BAD: dict[str, Callable[[Tensor], Any]] = {
    "a dimension too far": lambda x: x.sum(2),
    "a dimension before the batch": lambda x: x.sum(-3),
    "softmax too far": lambda x: x.softmax(2),
    "select out of range": lambda x: x.select(1, 3),
    "unsqueeze too far": lambda x: x.unsqueeze(3),
    "unsqueeze before the batch": lambda x: x.unsqueeze(-4),
    "transposed with the batch": lambda x: x.transpose(0, -3),
    "a permutation too short": lambda x: x.permute(0),
    "a view of another size": lambda x: x.view(5),
    "an expansion of 3 to 4": lambda x: x.expand(2, 4),
    "more padding than dimensions": lambda x: A.constant_pad_nd(x, [1, 1, 1, 1, 1, 1], 0.0),
    "dot of matrices": lambda x: A.dot(x, x),
    "dot of two lengths": lambda x: A.dot(x[0], x[0, :1]),
    "mm of a vector": lambda x: A.mm(x, x[0]),
    "mv of a matrix": lambda x: A.mv(x, x.t()),
    "mm that does not fit": lambda x: A.mm(x, x),
    "cat of two ranks": lambda x: torch.cat([x, x[0]]),
    "stack of two sizes": lambda x: torch.stack([x, x[:, :1]]),
    "einsum of two sizes": lambda x: torch.einsum("ij,jk", x, x),
    "einsum of too many letters": lambda x: torch.einsum("ijk->i", x),
    "einsum of too few letters": lambda x: torch.einsum("i->i", x),
    "einsum with a letter from nowhere": lambda x: torch.einsum("ij->ik", x),
    "einsum with a letter twice": lambda x: torch.einsum("ij->ii", x),
    "einsum of a diagonal of no square": lambda x: torch.einsum("ii", x),
    "einsum of one tensor too few": lambda x: torch.einsum("ij,jk", x),
    "einsum with a number": lambda x: torch.einsum("i1", x),
    "the inverse of no square": torch.linalg.inv,
    "solve of no square": lambda x: torch.linalg.solve(x, x),
    "solve of two sizes": lambda x: torch.linalg.solve(x @ x.mT, x.mT),
    "cdist of two widths": lambda x: torch.cdist(x, x.mT),
    "an image without a batch resized": lambda x: A.upsample_nearest1d(x, [7]),
    "batch norm with a weight too long": lambda x: torch.batch_norm(
        x, V[:2], None, None, None, True, 0, 1e-5, False
    ),
    "an embedding out of range": lambda x: A.embedding(x, torch.tensor([2])),
    "gather of two ranks": lambda x: x.gather(0, torch.tensor([0])),
    "layer norm of more than there is": lambda x: A.native_layer_norm(
        x, [BATCH, 2, 3], None, None, 1e-5
    ),
    "too many indices": lambda x: x[torch.tensor([0]), torch.tensor([0]), torch.tensor([0])],
}


# Calls that fail with another message for a batch.
IN_OTHER_WORDS = {
    "more padding than dimensions",  # torch's rule pads the batch, which is rejected when vmap ends
    "layer norm of more than there is",  # likewise
    "an embedding out of range",  # depends on values, which other kernels check for a batch
}


@pytest.mark.parametrize("f", BAD.values(), ids=BAD.keys())
def test_call_invalid_for_a_sample_is_rejected(f: Callable[[Tensor], Any]) -> None:
    """The additional batch dimension must not make the call valid, and is not counted in the
    message."""
    x = stacked(X, 0)
    with pytest.raises((RuntimeError, IndexError, ValueError)) as of_a_sample:
        f(X)
    with pytest.raises((RuntimeError, IndexError, ValueError)) as of_the_batch:
        tl.vmap(f)(x)
    assert tl.current_stack() == ()
    if all(f is not BAD[name] for name in IN_OTHER_WORDS):
        assert str(of_a_sample.value).rstrip(".") in str(of_the_batch.value)


def test_solve_of_matrices_of_two_ranks() -> None:
    """torch's rule aligns the batch dimension with a sample's dimension."""
    f, tensors = torch.linalg.solve, [CUBES, values(3, 2)]
    for args, dims in batches(tensors):
        close(tl.vmap(f, in_dims=dims)(*args), one_by_one(f, args, dims))


def test_samples_of_two_levels() -> None:
    """The outer vmap's batch dimension is not a dimension of the inner vmap's samples."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.sum(0, keepdim=True), (y @ x.t() @ x)[None], y.softmax(-1)[None]])

    x, y = values(4, 2, 3), values(5, 3)
    found = tl.vmap(lambda x: tl.vmap(lambda y: f(x, y))(y))(x)
    expected = torch.stack([torch.stack([f(a, b) for b in y]) for a in x])
    close(found, expected)


def test_no_samples() -> None:
    for f in (lambda x: x.view(6), lambda x: x.sum(), lambda x: x @ V, lambda x: x.softmax(0)):
        close(tl.vmap(f)(X.new_zeros(0, 2, 3)), torch.func.vmap(f)(X.new_zeros(0, 2, 3)))
    close(tl.vmap(lambda x: torch.where(x > 0, x, 1))(V[:0]), V[:0])
    close(tl.vmap(lambda x: (x > 0) * 2.5)(V[:0]), V[:0].float())
