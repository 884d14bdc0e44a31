"""tree.ravel and tree.paths."""

import collections

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import StructureError

Point = collections.namedtuple("Point", "x y")
TREE = {
    "w": torch.arange(6.0, dtype=torch.float64).view(2, 3).T,
    "n": [torch.tensor(7), torch.tensor([True, False])],
    "z": Point(torch.tensor([1 + 2j]), "constant"),
}


def test_unravel_gives_the_tree_back():
    vector, unravel = tl.tree.ravel(TREE)
    assert vector.dtype == torch.complex128
    assert vector.shape == (10,)
    back = unravel(vector)
    assert back["z"].y == "constant"
    torch.testing.assert_close(back["z"].x, TREE["z"].x)
    torch.testing.assert_close((back["w"], back["n"]), (TREE["w"], TREE["n"]))


@pytest.mark.parametrize(
    ("tree", "dtype", "size"),
    [
        ((), torch.float32, 0),
        ({"a": 3}, torch.float32, 0),
        (
            [torch.ones(2, dtype=torch.int8), torch.ones(0, 3, dtype=torch.bfloat16)],
            torch.bfloat16,
            2,
        ),
        (torch.tensor(2), torch.int64, 1),
    ],
)
def test_dtypes_are_promoted(tree, dtype, size):
    vector, unravel = tl.tree.ravel(tree)
    assert (vector.dtype, vector.shape) == (dtype, (size,))
    assert tl.tree.flatten(unravel(vector))[1] == tl.tree.flatten(tree)[1]


def test_derivatives_and_batches_go_through_both():
    params = {"w": torch.randn(3, 2, dtype=torch.float64), "b": torch.randn(2, dtype=torch.float64)}

    def loss(params):
        return (params["w"].sin() * params["b"]).sum()

    vector, unravel = tl.tree.ravel(params)
    gradient = tl.grad(lambda v: loss(unravel(v)))(vector)
    torch.testing.assert_close(unravel(gradient), tl.grad(loss)(params))
    pulled = tl.grad(lambda p: (tl.tree.ravel(p)[0] * gradient).sum())(params)
    torch.testing.assert_close(pulled, unravel(gradient))
    several = torch.stack([vector, 2 * vector])
    batched = tl.vmap(lambda v: tl.tree.ravel(unravel(v))[0])(several)
    assert torch.equal(batched, several)


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.ones(2, 2), 4])
def test_unravel_takes_a_vector_of_its_length(wrong):
    _, unravel = tl.tree.ravel(torch.ones(2, 2))
    with pytest.raises(StructureError, match=r"unravel takes a vector of shape \(4,\), got"):
        unravel(wrong)


def test_paths_are_in_the_order_of_leaves():
    assert tl.tree.paths(TREE) == ["['w']", "['n'][0]", "['n'][1]", "['z'].x", "['z'].y"]
    assert tl.tree.paths(3) == [""]
