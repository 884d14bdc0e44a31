"""Where does the time of per-sample gradients go?

The gradients of the demo's network for a batch of digits, traced: how much of the time goes into
kernels, into the layers above them, and into Python. The summary has to account for at least 95 %
of the time that the call took. `--page trace.html` writes the trace as a page for a browser, and
`--compiled compiled.html` that of a small function's gradients, compiled and not.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

import torchlayers
from examples.digits import OURS, load, network, ways
from examples.figures import check
from torchlayers.core.trace import Trace

IMAGES = 256
EXPLAINED = "share of the time that the summary explains"


def traced() -> Trace:
    """A trace of the gradients of all images in one call."""
    train, _ = load(train_images=IMAGES)
    gradients = ways(network(), train)[OURS].per_sample_gradients
    gradients(*train)  # the first call of a process also loads code
    return torchlayers.trace(gradients)(*train)


def loss(weights: tuple[Tensor, Tensor], x: Tensor, y: Tensor) -> Tensor:
    hidden = torch.tanh(x @ weights[0])
    return (hidden @ weights[1] - y).square().sum()


def traced_compiled() -> Trace:
    """A trace of per-sample gradients: a call of compiled code, and one without compile."""
    gradients = torchlayers.vmap(torchlayers.grad(loss), in_dims=(None, 0, 0))
    given = (torch.randn(8, 16), torch.randn(16, 1)), torch.randn(32, 8), torch.randn(32, 1)
    compiled = torchlayers.compile(gradients, wait=True)
    compiled(*given)
    gradients(*given)
    with torchlayers.trace() as trace:
        compiled(*given)
        gradients(*given)
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description="Where does the time of a call go?")
    parser.add_argument("--page", type=Path, help="writes the trace as a page")
    parser.add_argument("--compiled", type=Path, help="writes that of a compiled function as one")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    trace = traced()
    summary = trace.summary()
    print(summary)
    if options.page:
        trace.to_html(options.page)
    if options.compiled:
        traced_compiled().to_html(options.compiled)
    check({EXPLAINED: summary.explained}, {EXPLAINED: (0.975, 0.025)})


if __name__ == "__main__":
    main()
