"""Captures and differentiates samples of op_db, and compares them with eager autograd."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from tests.rules.opinfo.cases import Case
from tests.support.make_fx import make_fx
from torchlayers.core import pytree
from torchlayers.graph import differentiate

_NOT_RECORDED = "make_fx can't record it: "
_MAX_NORM = "with max_norm it writes to its weight, an argument, through a detached alias"

# Operators that fail on some samples, each with the reason and the error.
EXCEPTIONS: dict[str, tuple[str, str]] = {
    "as_strided_scatter": (
        "a part without dimensions is overwritten: eager has 1 where its gradient is zero",
        "Tensor-likes are not close",
    ),
    "combinations": (
        "the recorded graph copies in place, so it is recorded anew, where masked_select's "
        "shape is not known",
        "can't be traced",
    ),
    "corrcoef": (_NOT_RECORDED + "it looks at values to check its arguments", "tracing tensor"),
    "cov": (_NOT_RECORDED + "it looks at values to check its arguments", "tracing tensor"),
    "linalg.matrix_power": (
        "the power 0 is a constant; eager calls its gradient zero",
        "in a way that has a derivative",
    ),
    "masked.prod": (
        "of inputs that are NaN: eager divides by them, and what torch records does not",
        "Tensor-likes are not close",
    ),
    "nn.functional.embedding": (_MAX_NORM, "a detached alias"),
    "nn.functional.embedding_bag": (_MAX_NORM, "a detached alias"),
    "nn.functional.gaussian_nll_loss": (
        _NOT_RECORDED + "it looks at values to check its arguments",
        "tracing tensor",
    ),
    "sparse.mm.reduce": (_NOT_RECORDED + "it takes a sparse tensor", "Sparse CSR"),
    "sparse.sampled_addmm": (_NOT_RECORDED + "it takes a sparse tensor", "Sparse CSR"),
    "to_sparse": ("what it returns is sparse", "in a way that has a derivative"),
}


def check(case: Case) -> bool:
    """Raises if the values or gradients of the differentiated graph differ from eager's.

    Differentiates by all inputs, or by the first one if eager can't differentiate by another (a
    target, a running mean). Returns False if eager can't differentiate the sample at all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated operators
        return any(_check(case, wanted) for wanted in (range(len(case.inputs)), range(1)))


def _check(case: Case, wanted: range) -> bool:
    inputs = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(case.inputs)]
    try:
        expected = _run(case.func, inputs, wanted)
    except RuntimeError:
        return False
    if not expected[0]:
        return False
    graph = make_fx(lambda *xs: pytree.leaves(case.func(*xs)))(*inputs)
    if _is_random(graph):
        # Eager may draw other numbers than the captured graph, which is compared instead.
        expected = _run(graph, inputs, wanted)
    before = str(graph.graph)
    found = _run(differentiate(graph, argnums=wanted), inputs, wanted)
    assert str(graph.graph) == before
    torch.testing.assert_close(found, expected, equal_nan=True)
    return True


def _run(
    function: Callable[..., Any], inputs: list[Tensor], wanted: range
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the results that have derivatives, and their gradients for random cotangents."""
    torch.manual_seed(0)
    leaves = pytree.leaves(function(*inputs))
    outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    generator = torch.Generator().manual_seed(7)
    cotangents = [torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in outputs]
    if not outputs:
        return [], []
    by = [inputs[i] for i in wanted]
    gradients = torch.autograd.grad(outputs, by, cotangents, allow_unused=True)
    # A missing gradient equals a gradient of zeros.
    pairs = zip(gradients, by, strict=True)
    return outputs, [torch.zeros_like(x) if g is None else g for g, x in pairs]


def _is_random(graph: GraphModule) -> bool:
    return any(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        for node in graph.graph.nodes
    )
