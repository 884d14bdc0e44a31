"""Scatter-adds by row index: the batch becomes the innermost dimension where rows are short."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from benchmarks.physics import cluster, lennard_jones
from tests.compiler.passes.simplified import same

index_put = torch.ops.aten.index_put  # the method takes no None
PAIRS = torch.randint(7, (2, 20), generator=torch.Generator().manual_seed(0))


def added(sizes: tuple[int, ...], *rows: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Returns a scatter-add of rows that share a short sum, as squared distances do."""

    def func(x: Tensor) -> Tensor:
        of_rows = x * x.square().sum(-1, keepdim=True).exp()
        return index_put(torch.zeros(sizes, dtype=x.dtype), [*rows], of_rows, True)

    return func


def masked(x: Tensor) -> Tensor:
    of_all = x * x.square().sum(-1, keepdim=True)
    return index_put(torch.zeros(16, 1), [None, torch.ones(1).bool()], of_all, True)


def written(x: Tensor) -> Tensor:
    return index_put(torch.zeros(16, 7, 3), [None, PAIRS[0] * 0], x * x.sum(-1, keepdim=True))


TURNED = {
    "rows": (added((16, 7, 3), None, PAIRS[0]), (16, 20, 3)),
    "single numbers": (
        lambda x: index_put(
            torch.zeros(16, 7, dtype=x.dtype), [None, PAIRS[0]], x.square().sum(-1).exp(), True
        ),
        (16, 20, 3),
    ),
    "rows by two numbers": (added((16, 7, 7, 3), None, *PAIRS), (16, 20, 3)),
    "rows by a table of numbers": (added((16, 7, 3), None, PAIRS), (16, 2, 20, 3)),
    "a batch of two dimensions": (added((4, 5, 7, 3), None, None, PAIRS[0]), (4, 5, 20, 3)),
    "one row for all pairs": (added((16, 7, 3), None, PAIRS[0]), (16, 1, 3)),
    "the same in each column": (added((16, 7, 3), None, PAIRS[0]), (16, 20, 1)),
    "numbers from the end": (added((16, 7, 3), None, PAIRS[0] - 7), (16, 20, 3)),
}
LEFT = {
    "no batch": (added((7, 3), PAIRS[0]), (20, 3)),
    "a small batch": (added((15, 7, 3), None, PAIRS[0]), (15, 20, 3)),
    "long rows": (added((16, 7, 9), None, PAIRS[0]), (16, 20, 9)),
    "a batch by the looks of it": (added((20, 7, 3), None, PAIRS[0]), (20, 3)),
    "the same for each sample": (added((16, 7, 3), None, PAIRS[0]), (1, 20, 3)),
    "numbers that are apart": (added((16, 7, 3, 7), None, PAIRS[0], None, PAIRS[1]), (20, 16, 3)),
    "a mask": (masked, (16, 1)),
    "the last one written": (written, (16, 20, 3)),
    "nothing in common": (
        lambda x: index_put(torch.zeros(16, 7, 3), [None, PAIRS[0]], x.exp(), True),
        (16, 20, 3),
    ),
}


def turned(func: Callable[..., Tensor], *args: Tensor) -> list[bool]:
    """Returns, for each scatter-add, whether the indexed dimension comes first."""
    graph = same(func, *args, fuse_small=True)
    puts = [node for node in graph.graph.nodes if node.target is torch.ops.aten.index_put.default]
    return [node.args[1][0] is not None for node in puts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", TURNED)
def test_batch_becomes_the_innermost_dimension(name, dtype):
    func, sizes = TURNED[name]
    assert turned(func, torch.randn(sizes, dtype=dtype)) == [True]


@pytest.mark.parametrize("name", LEFT)
def test_other_scatters_are_unchanged(name):
    func, sizes = LEFT[name]
    assert turned(func, torch.randn(sizes)) == [name == "no batch"]


def test_half_precision_stays():
    func, sizes = TURNED["rows"]
    assert turned(func, torch.randn(sizes).bfloat16()) == [False]


def test_destination_is_transposed_too():
    _, sizes = TURNED["rows"]
    bias = torch.randn(16, 7, 3)

    def on(bias: Tensor, x: Tensor) -> Tensor:
        return index_put(bias, [None, PAIRS[0]], x * x.sum(-1, keepdim=True), True)

    assert turned(on, bias, torch.randn(sizes)) == [True]
    assert turned(on, bias.permute(2, 1, 0).contiguous().permute(2, 1, 0), torch.randn(sizes)) == [
        True
    ]


def test_both_ends_of_a_pair_share_the_added_values():
    graph = same(tl.hessian(lennard_jones), *cluster(6), exact=False, fuse_small=True)
    puts = [node for node in graph.graph.nodes if node.target is torch.ops.aten.index_put.default]
    assert [node.meta["val"].shape for node in puts] == [(6, 3, 18)] * 2
    kept = [node for node in graph.graph.nodes if "force_stride" in str(node.target)]
    assert sum(node.meta["val"].shape == (18, 15, 3) for node in kept) == 1


@pytest.mark.sweep
def test_inductor_agrees():
    hessian = tl.compile(tl.hessian(lennard_jones))
    atoms = cluster(6)
    torch.testing.assert_close(hessian(*atoms), tl.hessian(lennard_jones)(*atoms))
    assert hessian.report().signatures[0].how == "inductor"
