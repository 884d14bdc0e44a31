"""All second derivatives of operators whose torch kernels lack one, or have a wrong one, against
differences of the first."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl

torch.manual_seed(0)
TARGETS = torch.tensor([[1, 2, -1, 0], [3, 0, -1, 0]])
LABELS = torch.tensor([2, 0, 1])
WEIGHTS = torch.tensor([0.5, 2, 1, 3], dtype=torch.float64)
SCALES = torch.tensor([[0], [0.01], [1], [3]], dtype=torch.float64)  # of zeros, and of a short row
MASK = torch.ones(4, 4, dtype=torch.bool).tril()


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64)


def grouped_heads(x):
    return F.scaled_dot_product_attention(x, x[:, :2] * 2, x[:, 1:3].sin(), enable_gqa=True)


def in_weight_norm(dim):
    direction = draw(3, 4)
    return lambda x: torch._weight_norm(direction + x, x.sum(1 - dim, keepdim=True), dim).tanh()


def transposed(x):
    weight = x[:, :1].mT.exp().expand(2, 3, 3)
    return F.conv_transpose1d(x.sin(), weight, stride=2, output_padding=1)


def in_bags(weights=False, **options):
    """Bags with rows that occur twice, and one that is empty."""
    rows, starts = torch.tensor([0, 1, 1, 3, 4, 3, 0]), torch.tensor([0, 3, 3, 5, 7])
    options = {"include_last_offset": False} | options
    starts = starts if options["include_last_offset"] else starts[:-1]

    def bags(x):
        factors = x.sum(1).sin().repeat(2)[:7] if weights else None
        return F.embedding_bag(rows, x.sin(), starts, per_sample_weights=factors, **options)

    return bags, draw(5, 3)


def aligned(targets=((1, 1, 2, 2), (3, 0, 0, 0)), lengths=((5, 4), (3, 1)), normed=True, **options):
    def losses(x):
        return F.ctc_loss(x.log_softmax(2) if normed else x, targets, *lengths, **options)

    targets = torch.tensor(targets)
    return losses, draw(5, len(lengths[0]), 4).log_softmax(2)


# torch's first derivative takes probabilities for ones that add up to one.
_UNNORMED = "alignments, probabilities that add up to another number"
TENSORS = torch.tensor([5, 4]), torch.tensor([3, 1])

CASES = {
    "sums of bags": in_bags(mode="sum"),
    "sums of bags, padding": in_bags(mode="sum", padding_idx=3),
    "sums of bags, weights": in_bags(mode="sum", weights=True),
    "sums of bags, weights, padding, the last offset": in_bags(
        mode="sum", weights=True, padding_idx=3, include_last_offset=True
    ),
    "means of bags": in_bags(mode="mean"),
    "means of bags, padding, the last offset": in_bags(
        mode="mean", padding_idx=3, include_last_offset=True
    ),
    "largest of bags": in_bags(mode="max"),
    "largest of bags, padding": in_bags(mode="max", padding_idx=3),
    "rows of bags": (
        lambda x: F.embedding_bag(torch.tensor([[0, 1], [2, 1]]), x.exp(), mode="mean"),
        draw(3, 2),
    ),
    "alignments": aligned(),
    "alignments, each": aligned(reduction="none"),
    "alignments, lengths in tensors": aligned(lengths=TENSORS, reduction="sum"),
    "alignments of targets in a row": aligned(targets=(1, 1, 2, 3)),
    "alignments, another blank": aligned(
        targets=((1, 1, 2), (3, 3, 3)), blank=3, lengths=((5, 4), (3, 0))
    ),
    "alignments, impossible ones": aligned(lengths=((5, 4), (4, 1)), zero_infinity=True),
    _UNNORMED: aligned(normed=False),
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
        f"margins, power {p}, {reduction}": (
            lambda x, p=p, reduction=reduction: F.multi_margin_loss(
                x.sin(), LABELS, p=p, weight=WEIGHTS, reduction=reduction
            ),
            draw(3, 4),
        )
        for p in (1, 2)
        for reduction in ("none", "mean")
    },
    "margins of one sample": (lambda x: F.multi_margin_loss(x.sin(), LABELS[0], p=2), draw(4)),
    "weighted cross entropy": (
        lambda x: F.binary_cross_entropy(
            x.sigmoid(), x[0].square().sigmoid().expand_as(x), weight=x[1].square().expand_as(x)
        ),
        draw(3, 4),
    ),
    **{
        f"lengths limited to one, order {order}": (
            lambda x, order=order: (x * SCALES).renorm(order, 0, 1.0).exp(),
            draw(4, 3),
        )
        for order in (0.5, 1, 2, 3.5, float("inf"))
    },
    "lengths limited, of columns": (lambda x: x.renorm(2, -1, 0.4).exp(), draw(3, 2, 2)),
    "lengths limited to zero": (lambda x: x.renorm(2, 0, 0.0) + x * x, draw(3, 2)),
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
    "transposed convolution": (transposed, draw(1, 2, 3)),
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


# Gradients by operators of torch's that plain autograd does not differentiate.
_ONLY_BY_LAYERS = (
    *("attention", "causal attention", "masked attention"),
    *("margins of several labels", "weighted cross entropy"),
)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(_ONLY_BY_LAYERS)])
def test_plain_autograd_differentiates_the_first_derivative(name):
    f, x = CASES[name]
    value = lambda x: f(x).square().sum()  # noqa: E731
    expected = tl.grad(lambda x: tl.grad(value)(x).sin().sum())(x)
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(tl.grad(value)(leaf).sin().sum(), leaf)
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # some have no batching rule
@pytest.mark.parametrize("name", [name for name in CASES if name != _UNNORMED])
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


@pytest.mark.parametrize("outer", ["forward", "reverse"])
@pytest.mark.parametrize("inner", ["forward", "reverse"])
@pytest.mark.parametrize(
    "name",
    ["sums of bags, weights", "alignments", "margins, power 2, mean", "transposed convolution"],
)
def test_third_derivative_is_the_difference_of_the_second(name, inner, outer):
    f, x = CASES[name]
    v, w = torch.ones_like(x), torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    value = lambda x: f(x).square().sum()  # noqa: E731
    slope = lambda x: along(value, x, v)[inner]()  # noqa: E731
    bend = lambda x: along(slope, x, w)[outer]()  # noqa: E731
    step = 1e-5
    expected = (bend(x + step * w) - bend(x - step * w)) / (2 * step)
    for mode in ("forward", "reverse"):
        torch.testing.assert_close(along(bend, x, w)[mode](), expected, rtol=1e-6, atol=1e-6)


def test_labels_of_samples_are_made_one_hot_inside_grad():
    labels = torch.tensor([[0, 2], [1, 1]])
    f = lambda x, labels: (F.one_hot(labels, 3) * x).square().sum()  # noqa: E731
    x = draw(2, 3)
    slopes = tl.vmap(tl.grad(f), (None, 0))(x, labels)
    torch.testing.assert_close(slopes, 2 * x * F.one_hot(labels, 3))


class Passing(tl.Layer):
    """A layer that lets everything through."""


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_inside_a_layer_whose_samples_are_differentiated(mode):
    """torch calls an operator without a derivative: the layer's tensors do not require grad."""
    bags, x = in_bags(mode=mode)

    def inside(x):
        with Passing():
            return bags(x).sin()

    batch = torch.stack([x, x.cos()])
    v = torch.ones_like(batch)
    value, expected = tl.vmap(inside), tl.vmap(lambda x: bags(x).sin())
    for along_v in (
        lambda f: tl.jvp(f, (batch,), (v,))[1],
        lambda f: tl.grad(lambda x: f(x).square().sum())(batch),
    ):
        torch.testing.assert_close(along_v(value), along_v(expected))


@pytest.mark.parametrize(
    "transform", [tl.laplacian, lambda f: lambda x: tl.jet(f, (x,), ((x,),))[1]]
)
def test_one_hot_of_samples_inside_a_layer_in_python(transform):
    f = lambda x: (F.one_hot(x.argmax(-1), 4) * x.sin()).sum()  # noqa: E731
    expected = lambda x: (x.amax(-1).sin()).sum()  # noqa: E731
    x = draw(3, 2, 4)
    torch.testing.assert_close(tl.vmap(transform(f))(x), tl.vmap(transform(expected))(x))
