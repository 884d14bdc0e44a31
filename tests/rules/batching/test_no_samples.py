"""Batches without samples: the results have the shape of one sample's results, repeated zero
times."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.rules.batching.samples import SAMPLES, values
from tests.support.nests import Nest, nests, transformed

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:.*degrees of freedom"),
]

IMAGES = values(2, 3, 6, 6)
WEIGHT = values(4, 3, 3, 3)
MATRIX = values(3, 3)

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "convolution": lambda x: F.conv2d(x, WEIGHT, stride=2),
    "transposed convolution": lambda x: F.conv_transpose2d(x, WEIGHT.transpose(0, 1)),
    "max pooling": lambda x: F.max_pool2d(x, 2),
    "average pooling": lambda x: F.avg_pool2d(x, 3, padding=1),
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x, 2),
    "resizing": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "padding": lambda x: F.pad(x, (1, 2, 1, 2), mode="reflect"),
    "patches": lambda x: F.unfold(x, 2),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x, 3),
    "layer norm": lambda x: F.layer_norm(x, (6, 6)),
    "a size left open": lambda x: x.reshape(2, -1),
    "as_strided": lambda x: x.as_strided((2, 3), (3, 1)),
    "parts": lambda x: x.split(2, 1),
    "largest": lambda x: x.max(),
    "largest of rows": lambda x: x.max(-1),
    "median": lambda x: x.median(),
    "an index": lambda x: x[:, [0, 2]],
    "a product": lambda x: x @ x.mT,
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "a decomposition": lambda x: torch.linalg.cholesky(x @ x.mT + 9 * torch.eye(6).double()),
    "an eigenvalue": lambda x: torch.linalg.eigvalsh(x + x.mT),
    "mixed dtypes": lambda x: x.float().sum() * x + torch.ones((), dtype=torch.int64),
    "a loss": lambda x: F.cross_entropy(x.flatten(2), torch.zeros(2, 36, dtype=torch.int64)),
    "a write": lambda x: x.clone().mul_(2).index_fill_(0, torch.tensor([0]), 1.0),
    "complex": lambda x: torch.fft.rfft(x).abs(),
}


def none_of(x: Tensor) -> Tensor:
    return x.new_empty((0, *x.shape))


def looks(result: Any, leaves_out: int = 0) -> list[Any]:
    return [(leaf.shape[leaves_out:], leaf.dtype) for leaf in pytree.tree_leaves(result)]


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_results_are_empty_with_a_samples_shape(f: Callable[[Tensor], Any]) -> None:
    found = tl.vmap(f)(none_of(IMAGES))
    assert looks(found, 1) == looks(f(IMAGES))
    assert all(len(leaf) == 0 for leaf in pytree.tree_leaves(found))


def number(f: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def total(x: Tensor) -> Tensor:
        leaves = [leaf for leaf in pytree.tree_leaves(f(x)) if leaf.is_floating_point()]
        return sum((leaf.double().sum() for leaf in leaves), torch.zeros(()).double())

    return total


@nests
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_empty_in_every_nest(name: str, nest: Nest) -> None:
    if "vmap" not in nest:
        return
    empty, one = IMAGES, IMAGES
    for kind in reversed(nest):
        if kind == "vmap":
            empty, one = none_of(empty), one[None]
    nested = transformed(number(FUNCTIONS[name]), nest)
    assert nested(empty).dtype == torch.float64
    assert nested(empty).dim() == nested(one).dim()


def test_shared_argument_has_a_gradient_of_zeros() -> None:
    def loss(weight: Tensor) -> Tensor:
        return tl.vmap(lambda x: F.conv2d(x, weight).square().sum())(none_of(IMAGES)).sum()

    assert torch.equal(tl.grad(loss)(WEIGHT), torch.zeros_like(WEIGHT))
    weight = WEIGHT.clone().requires_grad_()
    loss(weight).backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"repeat_interleave.Tensor"}))
def test_rules_keep_shapes(name: str) -> None:
    for f, tensors in SAMPLES[name]:
        one = tl.vmap(f)(*(x[None] for x in tensors))
        assert looks(tl.vmap(f)(*map(none_of, tensors)), 1) == looks(one, 1)


def test_a_size_that_depends_on_numbers_is_zero() -> None:
    assert tl.vmap(torch.repeat_interleave)(torch.ones(0, 3, dtype=torch.int64)).shape == (0, 0)


def test_random_operators_draw_nothing() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    weights = torch.rand(0, 4)
    drawn = tl.vmap(lambda w: torch.multinomial(w, 2), randomness="different")(weights)
    assert drawn.shape == (0, 2) and torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.view(5),
        lambda x: F.conv2d(x, WEIGHT[:, :2]),
        lambda x: x @ MATRIX[:2],
        lambda x: x[7],
    ],
)
def test_call_invalid_for_a_sample_is_rejected(f: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        tl.vmap(f)(none_of(IMAGES))
    assert tl.current_stack() == ()


def test_sizes_that_differ_between_samples_are_rejected() -> None:
    with pytest.raises(RuntimeError, match="would differ in size"):
        tl.vmap(torch.nonzero)(none_of(MATRIX))
