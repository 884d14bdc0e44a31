"""Where does the time of per-sample gradients go?

The gradients of the demo's network for a batch of digits, traced: how much of the time goes into
kernels, into the layers above them, and into Python. The summary has to account for at least 95 %
of the time that the call took. `--page trace.html` writes the trace as a page for a browser.
"""

import argparse
from pathlib import Path

import torch

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


def main() -> None:
    parser = argparse.ArgumentParser(description="Where does the time of a call go?")
    parser.add_argument("--page", type=Path, help="writes the trace as a page")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    trace = traced()
    summary = trace.summary()
    print(summary)
    if options.page:
        trace.to_html(options.page)
    check({EXPLAINED: summary.explained}, {EXPLAINED: (0.975, 0.025)})


if __name__ == "__main__":
    main()
