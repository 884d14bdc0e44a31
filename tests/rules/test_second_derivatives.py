"""All second derivatives of operators whose torch kernels lack one, or have a wrong one, against
differences of the first."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl

torch.manual_seed(0)
TARGETS = torch.tensor([[1, 2, -1, 0], [3, 0, -1, 0]])
LABELS = torch.tensor([2, 0, 1])
MASK = torch.ones(4, 4, dtype=torch.bool).tril()


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64)


def grouped_heads(x):
    return F.scaled_dot_product_attention(x, x[:, :2] * 2, x[:, 1:3].sin(), enable_gqa=True)


def in_weight_norm(dim):
    direction = draw(3, 4)
    return lambda x: torch._weight_norm(direction + x, x.sum(1 - dim, keepdim=True), dim).tanh()


CASES = {
    "attention": (lambda x: F.scaled_dot_product_attention(x, x * 2, x.sin()), draw(1, 2, 4, 3)),
    "causal attention": (
        lambda x: F.scaled_dot_product_attention(x, x * 2, x.sin(), is_causal=True),
        draw(1, 1, 4, 3),
    ),
    "masked attention": (
        lambda x: F.scaled_dot_product_attention(x, x * 2, x.sin(), attn_mask=MASK),
        draw(1, 1, 4, 3),
    ),
    "attention of grouped heads": (grouped_heads, draw(1, 4, 3, 2)),
    "weight norm of rows": (in_weight_norm(0), draw(3, 4)),
    "weight norm of columns": (in_weight_norm(1), draw(3, 4)),
    "glu": (F.glu, draw(3, 4)),
    "glu along the first dimension": (lambda x: F.glu(x, 0).sin(), draw(4, 3)),
    **{
        f"margins of several labels, {reduction}": (
            lambda x, reduction=reduction: F.multilabel_margin_loss(
                x.sin(), TARGETS, reduction=reduction
            ),
            draw(2, 4),
        )
        for reduction in ("none", "mean", "sum")
    },
    "margins of several labels, one sample": (
        lambda x: F.multilabel_margin_loss(x.sin(), TARGETS[0]),
        draw(4),
    ),
    "one_hot": (lambda x: (F.one_hot(LABELS, 4) * x).exp(), draw(3, 4)),
}


def along(f, x, v):
    """The derivative of f at x along v, in each mode."""
    return {
        "forward": lambda: tl.jvp(f, (x,), (v,))[1],
        "reverse": lambda: (tl.grad(f)(x) * v).sum(),
    }


@pytest.mark.parametrize("outer", ["forward", "reverse"])
@pytest.mark.parametrize("inner", ["forward", "reverse"])
@pytest.mark.parametrize("name", CASES)
def test_second_derivative_is_the_difference_of_the_first(name, inner, outer):
    f, x = CASES[name]
    v, w = torch.ones_like(x), torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    slope = lambda x: along(lambda x: f(x).square().sum(), x, v)[inner]()  # noqa: E731
    step = 1e-5
    expected = (slope(x + step * w) - slope(x - step * w)) / (2 * step)
    torch.testing.assert_close(along(slope, x, w)[outer](), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # some have no batching rule
@pytest.mark.parametrize("name", CASES)
def test_first_derivative_is_a_difference_for_each_sample(name):
    f, x = CASES[name]
    value = lambda x: f(x).square().sum()  # noqa: E731
    v = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    batch = torch.stack([x, x + 0.1])
    step = 1e-6
    expected = torch.stack(
        [(value(x + step * v) - value(x - step * v)) / (2 * step) for x in batch]
    )
    for mode in ("forward", "reverse"):
        slopes = tl.vmap(lambda x, mode=mode: along(value, x, v)[mode]())(batch)
        torch.testing.assert_close(slopes, expected, rtol=1e-5, atol=1e-11)


def test_labels_of_samples_are_made_one_hot_inside_grad():
    labels = torch.tensor([[0, 2], [1, 1]])
    f = lambda x, labels: (F.one_hot(labels, 3) * x).square().sum()  # noqa: E731
    x = draw(2, 3)
    slopes = tl.vmap(tl.grad(f), (None, 0))(x, labels)
    torch.testing.assert_close(slopes, 2 * x * F.one_hot(labels, 3))
