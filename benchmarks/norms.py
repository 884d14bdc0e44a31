"""Norms of per-sample gradients, and clipped sums: time and peak memory compared with Opacus.

``python -m benchmarks.norms`` writes a table into docs/benchmarks.md; with ``--quick`` it is rough,
and printed only. Where Opacus is not installed, vmap(grad) is the only peer.

Bar: per_sample_norms takes at most the time and the memory of Opacus' ghost clipping.
"""

import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.peak import peak_bytes
from benchmarks.timing import Effort, by_turns, check_same
from benchmarks.transformer import Block

SAMPLES, CLASSES, MAX_NORM = 32, 10, 0.5
TOKENS, WIDTH, HEADS, WORDS, BLOCKS = 64, 128, 4, 1000, 4

OPACUS, OURS, PLAIN = "Opacus", "torchlayers", "vmap(grad)"

Work = Callable[[], tuple[Tensor, ...]]
Data = tuple[Tensor, Tensor]


class Transformer(nn.Module):
    """A transformer on sequences of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(BLOCKS)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        classes: Tensor = self.head(self.blocks(self.words(tokens)).mean(-2))
        return classes


def cnn() -> nn.Module:
    """Four consecutive convolutions, with group norms."""

    def stage(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        return [convolution, nn.GroupNorm(8, outputs), nn.ReLU()]

    return nn.Sequential(
        *stage(3, 32, 1),
        *stage(32, 64, 2),
        *stage(64, 128, 2),
        *stage(128, 128, 2),
        nn.Flatten(),
        nn.Linear(128 * 16, CLASSES),
    )


def networks() -> dict[str, tuple[nn.Module, Data]]:
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES,))
    return {
        "CNN": (cnn(), (torch.randn(SAMPLES, 3, 32, 32), labels)),
        "transformer": (Transformer(), (torch.randint(WORDS, (SAMPLES, TOKENS)), labels)),
    }


def by_opacus(network: nn.Module, data: Data, is_clipped: bool) -> Work:
    """As in Opacus' documentation: norms in a first pass, the clipped sum in a second."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model: Any = GradSampleModuleFastGradientClipping(
        network, max_grad_norm=MAX_NORM, loss_reduction="sum"
    )
    x, labels = data
    parameters = list(network.parameters())

    def work() -> tuple[Tensor, ...]:
        model.enable_hooks()
        losses = F.cross_entropy(model(x), labels, reduction="none")
        losses.sum().backward(retain_graph=is_clipped)
        norms = model.get_norm_sample()
        for parameter in parameters:
            parameter.grad = None
        if not is_clipped:
            return (norms,)
        scale = model.get_clipping_coef()
        model.disable_hooks()
        (scale * losses).sum().backward()
        gradients = tuple(parameter.grad for parameter in parameters)
        for parameter in parameters:
            parameter.grad = None
        return norms, *gradients

    return work


def loss_of(network: nn.Module) -> Callable[..., Tensor]:
    def loss(params: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        logits = tl.functional_call(network, params, (x.unsqueeze(0),))
        return F.cross_entropy(logits, label.unsqueeze(0))

    return loss


def ours(network: nn.Module, data: Data, is_clipped: bool) -> Work:
    params = {name: value.detach() for name, value in network.named_parameters()}
    loss = loss_of(network)
    if not is_clipped:
        return lambda: (tl.per_sample_norms(loss)(params, *data),)

    def work() -> tuple[Tensor, ...]:
        gradients, norms = tl.clipped_grad(loss, MAX_NORM)(params, *data)
        return norms, *gradients.values()

    return work


def by_gradients(network: nn.Module, data: Data, is_clipped: bool) -> Work:
    """vmap(grad), and the norms of its results."""
    params = {name: value.detach() for name, value in network.named_parameters()}
    gradients_of = tl.vmap(tl.grad(loss_of(network)), in_dims=(None, 0, 0))

    def work() -> tuple[Tensor, ...]:
        gradients = gradients_of(params, *data)
        norms = torch.stack([each.flatten(1).norm(dim=1) for each in gradients.values()]).norm(
            dim=0
        )
        if not is_clipped:
            return (norms,)
        scale = (MAX_NORM / norms).clamp(max=1)
        return norms, *(torch.tensordot(scale, each, 1) for each in gradients.values())

    return work


PEERS = {OPACUS: by_opacus, OURS: ours, PLAIN: by_gradients}


def works(name: str, is_clipped: bool) -> dict[str, Work]:
    found = {}
    for peer, make in PEERS.items():
        if peer != OPACUS or find_spec("opacus"):
            network, data = networks()[name]
            found[peer] = make(network, data, is_clipped)
    return found


def check_equal(calls: dict[str, Work], is_clipped: bool) -> None:
    """Raises AssertionError unless all peers return the same. Opacus adds 1e-6 to a norm."""
    others = {peer: work for peer, work in calls.items() if peer != OPACUS or not is_clipped}
    check_same(others)
    if len(others) < len(calls):
        torch.testing.assert_close(calls[OURS](), calls[OPACUS](), rtol=1e-4, atol=1e-5)


def row(name: str, is_clipped: bool, effort: Effort) -> list[str]:
    calls = works(name, is_clipped)
    check_equal(calls, is_clipped)
    peaks = {peer: peak_bytes(work) / 2**20 for peer, work in calls.items()}
    times = {peer: t.scaled(1e3) for peer, t in by_turns(calls, effort, time.process_time).items()}

    def ratio(values: dict[str, float]) -> str:
        if OPACUS not in values:
            return ""
        found = values[OURS] / values[OPACUS]
        return f"{found:.2f}" + (", missed" if found > 1 else "")

    return [
        f"{name}, {'clipped sum' if is_clipped else 'norms'}",
        *(str(times.get(peer, "")) for peer in PEERS),
        ratio({peer: timing.median for peer, timing in times.items()}),
        *(f"{peaks[peer]:.1f}" if peer in peaks else "" for peer in PEERS),
        ratio(peaks),
    ]


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(rounds=3, block=0.05) if quick else Effort(rounds=9, block=0.2)
    header = (
        "processor's ms, and peak in MiB",
        *(f"{peer}, ms" for peer in PEERS),
        f"{OURS} / {OPACUS}",
        *(f"{peer}, MiB" for peer in PEERS),
        f"{OURS} / {OPACUS}",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns about its own code
        rows = [
            row(name, is_clipped, effort) for name in networks() for is_clipped in (False, True)
        ]
    peer = f"opacus {version('opacus')}" if find_spec("opacus") else "opacus is not installed"
    return {"benchmarks.md": f"{page.table(header, rows)}\n\n{machine.describe()}; {peer}."}


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "norms")
