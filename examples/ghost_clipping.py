"""Ghost clipping: DP-SGD's clipped sum of gradients, without computing per-sample gradients.

DP-SGD needs the norm of each sample's gradient, and then the sum of the gradients, each scaled
down to a norm of at most C. A linear layer's gradient for one sample is G'A, from the activations A
that go in (T x I, T the positions) and the cotangents G that come back (T x O). Its squared norm is
the sum of (AA') * (GG'), of T x T, so the gradient itself, I x O numbers per sample, is never
built; and the clipped sum is one product of A and G over all samples, with each sample's scale. A
convolution is a linear layer on patches, an embedding one on one-hot rows.

``clipped_grad`` does that, with one reverse pass. It is applied to a convolutional network, and to
a language model whose last layer shares the weight of its embedding, and compared with
``vmap(grad)``, which builds all gradients:

- Norms are the same to 1e-5 of the largest, and so are clipped sums (float32).
- For the language model it takes less than 0.5 of the memory of ``vmap(grad)``, at 32 samples.

Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015); Li, Tramer, Liang and
    Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (2022),
    section 4.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.figures import check
from torchlayers import clipped_grad, functional_call, grad, vmap
from torchlayers.memory import PeakMemory

Parameters = dict[str, Tensor]
Loss = Callable[[Parameters, Tensor, Tensor], Tensor]  # of one sample

CLIP = 0.5
SAMPLES, TOKENS, WIDTH, WORDS, CLASSES = 32, 16, 96, 500, 10

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "CNN: difference of norms": (0.0, 1e-5),
    "CNN: difference of clipped sums": (0.0, 1e-5),
    "language model: difference of norms": (0.0, 1e-5),
    "language model: difference of clipped sums": (0.0, 1e-5),
    "language model: memory over vmap(grad)'s": (0.25, 0.25),
}


class Block(nn.Module):
    """One-head attention to the preceding words, and a wider layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inputs, self.outputs = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inputs(self.norm(x)).chunk(3, -1)
        later = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
        weights = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(later, -math.inf).softmax(-1)
        x = x + self.outputs(weights @ v)
        wider: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return wider


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.next = nn.Linear(WIDTH, WORDS)
        self.next.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.next(self.blocks(self.words(words)) / math.sqrt(WIDTH))
        return logits


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


def loss_of(model: nn.Module) -> Loss:
    def loss(params: Parameters, x: Tensor, labels: Tensor) -> Tensor:
        logits = functional_call(model, params, (x.unsqueeze(0),)).squeeze(0)
        return F.cross_entropy(logits, labels)

    return loss


def by_gradients(
    loss: Loss, params: Parameters, x: Tensor, labels: Tensor
) -> tuple[Parameters, Tensor]:
    """The results of clipped_grad, computed by vmap(grad)."""
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, labels)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    scale = (CLIP / norms).clamp(max=1.0)
    return {name: torch.tensordot(scale, g, dims=1) for name, g in gradients.items()}, norms


def differences(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Relative differences of norms and of clipped sums; and clipped_grad's relative memory."""
    loss = loss_of(model)
    params = {name: value.detach() for name, value in model.named_parameters()}
    with PeakMemory() as ghost:
        sums, norms = clipped_grad(loss, CLIP)(params, x, labels)
    with PeakMemory() as plain:
        expected_sums, expected = by_gradients(loss, params, x, labels)
    of_norms = (norms - expected).abs().max() / expected.max()
    of_sums = max((sums[name] - each).abs().max() for name, each in expected_sums.items())
    largest = max(each.abs().max() for each in expected_sums.values())
    return of_norms.item(), (of_sums / largest).item(), ghost.peak / plain.peak


def main() -> dict[str, float]:
    torch.set_num_threads(1)  # the tensors are small
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES,))
    of_cnn = differences(cnn(), torch.randn(SAMPLES, 1, 8, 8), labels)
    words = torch.randint(WORDS, (SAMPLES, TOKENS + 1))
    of_model = differences(LanguageModel(), words[:, :-1], words[:, 1:])
    figures = dict(zip(EXPECTED, (*of_cnn[:2], *of_model), strict=True))
    check(figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
