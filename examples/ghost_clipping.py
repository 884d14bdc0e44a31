"""Ghost clipping: DP-SGD's clipped sum of gradients without any sample's gradient.

DP-SGD needs the norm of each sample's gradient, and then the sum of the gradients, each scaled
down to a norm of at most C. A linear layer's gradient for one sample is G'A, of the activations A
that go in (T x I, T the positions) and the cotangents G that come back (T x O). Its squared norm is
the sum of (AA') * (GG'), of T x T, so that the gradient itself, I x O numbers a sample, is never
made. A convolution is a linear layer on patches, an embedding one on one-hot rows, and the scale
and shift of a norm layer have gradients that are small. So one reverse pass gives all norms, from
the cotangents of the layers' results; a second one, with each sample's loss times its scale, gives
the clipped sum.

``grad`` differentiates by *taps*, zeros that hooks add to the layers' results, and returns the
layers' inputs beside: one transform, no gradient by a parameter. A convolutional network and a
transformer are taken, and figures compared with ``vmap(grad)``, which makes all gradients:

- Norms are the same to 1e-5 of the largest, and so are clipped sums (float32).
- The transformer's take less than 0.5 of the memory of ``vmap(grad)``, at 32 samples.

Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015); Li, Tramer, Liang and
    Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (2022),
    section 4.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.figures import check
from torchlayers import functional_call, grad, vmap
from torchlayers.memory import PeakMemory

Parameters = dict[str, Tensor]

CLIP = 0.5
SAMPLES, TOKENS, WIDTH, WORDS, CLASSES = 32, 16, 96, 500, 10

# What: (the expected figure, within).
EXPECTED = {
    "CNN: difference of norms": (0.0, 1e-5),
    "CNN: difference of clipped sums": (0.0, 1e-5),
    "transformer: difference of norms": (0.0, 1e-5),
    "transformer: difference of clipped sums": (0.0, 1e-5),
    "transformer: memory over vmap(grad)'s": (0.25, 0.25),
}


class Block(nn.Module):
    """Attention of one head, and a wider layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inputs, self.outputs = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inputs(self.norm(x)).chunk(3, -1)
        x = x + self.outputs((q @ k.mT / math.sqrt(WIDTH)).softmax(-1) @ v)
        wider: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return wider


class Classifier(nn.Module):
    """Of sequences of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        classes: Tensor = self.head(self.blocks(self.words(tokens)).mean(1))
        return classes


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(512, CLASSES),
    )


# A sample's squared norm, of each layer's inputs and cotangents.


def of_rows(a: Tensor, g: Tensor, has_bias: bool) -> Tensor:
    """Of a product with rows: a is samples x T x I, g samples x T x O."""
    positions, size = a.shape[1], a.shape[2] * g.shape[2]
    if positions**2 <= size:
        squares = ((a @ a.mT) * (g @ g.mT)).sum((1, 2))
    else:  # the gradient is smaller than that
        squares = (g.mT @ a).square().sum((1, 2))
    return squares + g.sum(1).square().sum(1) if has_bias else squares


def of_linear(layer: nn.Linear, a: Tensor, g: Tensor) -> Tensor:
    samples = len(a)
    rows = a.reshape(samples, -1, a.shape[-1]), g.reshape(samples, -1, g.shape[-1])
    return of_rows(*rows, layer.bias is not None)


def of_convolution(layer: nn.Conv2d, a: Tensor, g: Tensor) -> Tensor:
    patches = F.unfold(
        a,
        layer.kernel_size,  # type: ignore[arg-type]
        padding=layer.padding,  # type: ignore[arg-type]
        stride=layer.stride,  # type: ignore[arg-type]
        dilation=layer.dilation,  # type: ignore[arg-type]
    )
    squares = 0
    for a_of, g_of in zip(
        patches.chunk(layer.groups, 1), g.flatten(2).chunk(layer.groups, 1), strict=True
    ):
        squares = squares + of_rows(a_of.mT, g_of.mT, layer.bias is not None)
    assert isinstance(squares, Tensor)
    return squares


def of_embedding(layer: nn.Embedding, a: Tensor, g: Tensor) -> Tensor:
    rows, g = a.flatten(1), g.flatten(1, -2)
    if layer.padding_idx is not None:
        g = g * (rows != layer.padding_idx).unsqueeze(-1)
    alike = rows.unsqueeze(1) == rows.unsqueeze(2)
    return ((g @ g.mT) * alike).sum((1, 2))


def of_layer_norm(layer: nn.LayerNorm, a: Tensor, g: Tensor) -> Tensor:
    normal = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    dims = tuple(range(1, a.dim() - len(layer.normalized_shape)))
    return _squares([(g * normal).sum(dims) if dims else g * normal, g.sum(dims) if dims else g])


def of_group_norm(layer: nn.GroupNorm, a: Tensor, g: Tensor) -> Tensor:
    normal = F.group_norm(a, layer.num_groups, eps=layer.eps)
    return _squares([(g * normal).flatten(2).sum(2), g.flatten(2).sum(2)])


def _squares(gradients: list[Tensor]) -> Tensor:
    return sum(each.flatten(1).square().sum(1) for each in gradients)  # type: ignore[return-value]


SQUARES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Tensor]] = {
    nn.Linear: of_linear,
    nn.Conv2d: of_convolution,
    nn.Embedding: of_embedding,
    nn.LayerNorm: of_layer_norm,
    nn.GroupNorm: of_group_norm,
}


# The two passes.


@contextmanager
def tapped(
    layers: dict[str, nn.Module], see: Callable[[str, Tensor, Tensor], Tensor]
) -> Iterator[None]:
    """Inside, a layer's result is what `see` makes of its name, its input and the result."""
    handles = [
        layer.register_forward_hook(lambda _, args, result, name=name: see(name, args[0], result))
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def losses(params: Parameters, model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """A sample each."""
    return F.cross_entropy(functional_call(model, params, (x,)), labels, reduction="none")


def norms(params: Parameters, model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Of the samples' gradients by all parameters."""
    layers = {name: each for name, each in model.named_modules() if type(each) in SQUARES}
    known = {f"{name}.{own}" for name, each in layers.items() for own, _ in each.named_parameters()}
    if known != params.keys():
        raise ValueError(f"no formula for {sorted(params.keys() - known)}")
    shapes: dict[str, torch.Size] = {}

    def note(name: str, _: Tensor, result: Tensor) -> Tensor:
        if name in shapes:
            raise ValueError(f"{name} is called twice, and its gradient is a sum of both calls'")
        shapes[name] = result.shape[1:]
        return result

    with tapped(layers, note), torch.no_grad():
        functional_call(model, params, (x[:1],))

    def total(taps: Parameters) -> tuple[Tensor, Parameters]:
        inputs: Parameters = {}

        def add(name: str, given: Tensor, result: Tensor) -> Tensor:
            inputs[name] = given
            return result + taps[name]

        with tapped(layers, add):
            return losses(params, model, x, labels).sum(), inputs

    taps = {
        name: x.new_zeros((), dtype=torch.float32).expand(len(x), *shape)
        for name, shape in shapes.items()
    }
    cotangents, inputs = grad(total, has_aux=True)(taps)
    squares = torch.zeros(len(x))
    for name, layer in layers.items():
        squares += SQUARES[type(layer)](layer, inputs.pop(name), cotangents.pop(name))
    return squares.sqrt()


def clipped_sum(params: Parameters, model: nn.Module, x: Tensor, labels: Tensor) -> Parameters:
    scale = (CLIP / norms(params, model, x, labels)).clamp(max=1.0)
    return grad(lambda params: scale @ losses(params, model, x, labels))(params)  # type: ignore[no-any-return]


# By all gradients.


def per_sample_gradients(
    params: Parameters, model: nn.Module, x: Tensor, labels: Tensor
) -> Parameters:
    def loss(params: Parameters, x: Tensor, label: Tensor) -> Tensor:
        return losses(params, model, x.unsqueeze(0), label.unsqueeze(0)).sum()

    return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, labels)  # type: ignore[no-any-return]


def by_gradients(
    params: Parameters, model: nn.Module, x: Tensor, labels: Tensor
) -> tuple[Tensor, Parameters]:
    """The norms, and the clipped sum."""
    gradients = per_sample_gradients(params, model, x, labels)
    found = _squares(list(gradients.values())).sqrt()
    scale = (CLIP / found).clamp(max=1.0)
    return found, {name: torch.tensordot(scale, each, dims=1) for name, each in gradients.items()}


def differences(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Of norms and of clipped sums, over the largest; and the one way's memory over the other's."""
    given = {name: value.detach() for name, value in model.named_parameters()}, model, x, labels
    with PeakMemory() as ghost:
        total = clipped_sum(*given)
    with PeakMemory() as plain:
        expected, expected_total = by_gradients(*given)
    of_norms = (norms(*given) - expected).abs().max() / expected.max()
    of_sums = max((total[name] - each).abs().max() for name, each in expected_total.items())
    largest = max(each.abs().max() for each in expected_total.values())
    return of_norms.item(), (of_sums / largest).item(), ghost.peak / plain.peak


def main() -> dict[str, float]:
    torch.set_num_threads(1)  # the tensors are small
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES,))
    of_cnn = differences(cnn(), torch.randn(SAMPLES, 1, 8, 8), labels)
    tokens = torch.randint(WORDS, (SAMPLES, TOKENS))
    of_transformer = differences(Classifier(), tokens, labels)
    figures = dict(zip(EXPECTED, (*of_cnn[:2], *of_transformer), strict=True))
    check(figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
