"""A call for each operator with a cotangent rule, in which the rule is applied."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import torchlayers as tl
from tests.rules.forward.samples import IMAGE, VOLUME, A, Sample, X, Y, unit, values
from tests.rules.forward.samples import SAMPLES as FORWARD
from tests.rules.opinfo.cases import cases, ops
from tests.support.derivatives import Function
from tests.support.rule_tables import COTANGENTS

G = values(3, 2).t() + 0.1
PLACES = torch.tensor([[[0, 1], [2, 0]]])
TARGETS = torch.tensor([[1, 2]])
# One is empty. Each row is there twice: torch's kernel scales others by another row's frequency.
ROWS, STARTS = torch.tensor([0, 1, 1, 3, 4, 3, 0, 4]), torch.tensor([0, 3, 3, 5])
LABELS = torch.tensor([[0, 1, -1], [2, -1, 0]])  # of samples with several, up to the first -1
HALVES = torch.full((1, 2, 2), 0.5).double(), torch.full((1, 2, 3), 0.5).double()


def maxima(pool: Callable[..., Any], x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """x, and the indices of its maxima."""
    return x, pool(x, size, return_indices=True)[1]


def bags(w: Tensor | None = None) -> tuple[Tensor, ...]:
    """Where each sample is, the sizes of the bags and their maxima."""
    weight = torch.ones(5, 2).double()
    return A._embedding_bag(weight, ROWS, STARTS, True, 0, False, w, False, 3)[1:]


# For rules that op_db's samples do not reach, or not in a first-order gradient.
OWN: dict[str, Sample] = {
    "_adaptive_avg_pool2d_backward": (
        lambda g: A._adaptive_avg_pool2d_backward(g, IMAGE),
        [values(1, 2, 3, 2)],
    ),
    "_adaptive_avg_pool3d_backward": (
        lambda g: A._adaptive_avg_pool3d_backward(g, VOLUME),
        [values(1, 2, 2, 2, 2)],
    ),
    "_pdist_forward": (A._pdist_forward, [X]),
    "adaptive_max_pool2d_backward": (
        lambda g: A.adaptive_max_pool2d_backward(g, *maxima(F.adaptive_max_pool2d, IMAGE, 3)),
        [values(1, 2, 3, 3)],
    ),
    "adaptive_max_pool3d_backward": (
        lambda g: A.adaptive_max_pool3d_backward(g, *maxima(F.adaptive_max_pool3d, VOLUME, 2)),
        [values(1, 2, 2, 2, 2)],
    ),
    "avg_pool2d_backward": (
        lambda g: A.avg_pool2d_backward(g, IMAGE, [2, 3], [1, 2], [1, 1], True, False, None),
        [values(1, 2, 5, 3)],
    ),
    "avg_pool3d_backward": (
        lambda g: A.avg_pool3d_backward(g, VOLUME, [2, 2, 2], [1, 1, 2], [0, 0, 0], True, True, 3),
        [values(1, 2, 1, 2, 2)],
    ),
    "convolution_backward": (
        lambda g, x, w: A.convolution_backward(
            *(g, x, w, [3], [1], [0], [1], False, [0], 1, [True, True, True])
        ),
        [values(1, 3, 3), values(1, 2, 4), values(3, 2, 2)],
    ),
    "embedding_dense_backward": (
        lambda g: A.embedding_dense_backward(g, PLACES[0], 4, 2, False),
        [values(2, 2, 3)],
    ),
    "_embedding_bag_backward": (
        lambda g, w: A._embedding_bag_backward(
            *(g, ROWS, STARTS, *bags(w=w), 5, True, 0, False, w, 3)  # by frequency
        ),
        [values(4, 2), values(8)],
    ),
    "_embedding_bag_per_sample_weights_backward": (
        lambda g, weight: A._embedding_bag_per_sample_weights_backward(
            *(g, weight, ROWS, STARTS, bags()[0], 0, 3)
        ),
        [values(4, 2), values(5, 2)],
    ),
    "_standard_gamma_grad": (
        lambda shape, number: A._standard_gamma_grad(shape.abs() + 1, number.abs() / 20 + 0.1),
        [X, Y],
    ),
    "fractional_max_pool2d_backward": (
        lambda g: A.fractional_max_pool2d_backward(
            g, IMAGE, [2, 2], [2, 2], A.fractional_max_pool2d(IMAGE, [2, 2], [2, 2], HALVES[0])[1]
        ),
        [values(1, 2, 2, 2)],
    ),
    "fractional_max_pool3d_backward": (
        lambda g: A.fractional_max_pool3d_backward(
            *(g, VOLUME, [1, 1, 2], [1, 2, 2]),
            A.fractional_max_pool3d(VOLUME, [1, 1, 2], [1, 2, 2], HALVES[1])[1],
        ),
        [values(1, 2, 1, 2, 2)],
    ),
    "glu_backward": (
        lambda g, x: A.glu_backward(g, x, 1),
        [values(2, 2), values(2, 4)],
    ),
    "log_sigmoid_backward": (
        lambda g, x: A.log_sigmoid_backward(g, x, torch.exp(-x.detach().abs())),
        [X, Y],
    ),
    "max_pool3d_with_indices_backward": (
        lambda g: A.max_pool3d_with_indices_backward(
            *(g, VOLUME, [1, 2, 2], [1, 1, 1], [0, 0, 0], [1, 1, 1], False),
            F.max_pool3d(VOLUME, (1, 2, 2), 1, return_indices=True)[1],
        ),
        [values(1, 2, 2, 2, 3)],
    ),
    "multilabel_margin_loss_backward": (
        lambda g, x: A.multilabel_margin_loss_backward(
            g, x, LABELS, 0, A.multilabel_margin_loss_forward(x, LABELS, 0)[1]
        ),
        [values(2), X],
    ),
    "nll_loss_backward": (
        lambda g, x: A.nll_loss_backward(
            g, x, PLACES[0, 0], values(3), 1, -100, values(3)[:2].sum()
        ),
        [values(), X],
    ),
    "reflection_pad1d_backward": (
        lambda g: A.reflection_pad1d_backward(g, X, [2, 1]),
        [values(2, 6)],
    ),
    "replication_pad1d_backward": (
        lambda g: A.replication_pad1d_backward(g, X, [2, 1]),
        [values(2, 6)],
    ),
    "replication_pad2d_backward": (
        lambda g: A.replication_pad2d_backward(g, IMAGE, [2, 1, 0, 1]),
        [values(1, 2, 5, 7)],
    ),
    "_conj_physical": (A._conj_physical, [torch.complex(X, Y)]),
    "_ctc_loss": (
        lambda x: A._ctc_loss(x.log_softmax(2), TARGETS, [4], [2])[0],
        [values(4, 1, 3)],
    ),
    "_ctc_loss.Tensor": (
        lambda x: A._ctc_loss(x.log_softmax(2), TARGETS, torch.tensor([4]), torch.tensor([2]))[0],
        [values(4, 1, 3)],
    ),
    "_log_softmax_backward_data": (
        lambda y: A._log_softmax_backward_data(G, y, 1, torch.float64),
        [X],
    ),
    "_adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), [values(1, 2, 4, 4)]),
    "_softmax_backward_data": (
        lambda g: A._softmax_backward_data(g, Y, 1, torch.float64),
        [X],
    ),
    "_linalg_eigh": (lambda x: torch.linalg.eigh(x + x.mT), [values(3, 3)]),
    "_unsafe_view": (lambda x: A._unsafe_view(x * 1, [3, 2]), [X]),
    "add.Scalar": (lambda x: A.add.Scalar(x, 1.5, 2), [X]),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, unit(2, 3)), [unit(3, 2).t()]),
    "binary_cross_entropy_backward": (
        lambda x, y: A.binary_cross_entropy_backward(G, x, y, unit(3), 2),
        [unit(2, 3), unit(3, 2).t()],
    ),
    "binary_cross_entropy_with_logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, Y, unit(3), pos_weight=unit(3)),
        [X],
    ),
    "cholesky": (lambda x: torch.cholesky(x @ x.mT + torch.eye(3)), [values(3, 3)]),
    "cholesky_solve": (
        lambda b, x: torch.cholesky_solve(b, x.tril() + 3 * torch.eye(3)),
        [values(3, 2), values(3, 3)],
    ),
    "linalg_cholesky_ex": (
        lambda x: torch.linalg.cholesky_ex(x @ x.mT + torch.eye(3))[0],
        [values(3, 3)],
    ),
    "linalg_lstsq": (
        lambda a, b: torch.linalg.lstsq(a, b, driver="gelsd")[:2],
        [values(4, 2), values(4, 3)],
    ),
    "clamp_min": (lambda x: x.clamp_min(0.1), [X]),
    "clamp": (lambda x: x.clamp(-0.5, 0.6), [X]),
    "as_strided_scatter": (
        lambda x, y: A.as_strided_scatter(x, y, [2], [1], 1),
        [X, values(2)],
    ),
    "copy": (A.copy, [X, values(3)]),
    "copysign.Tensor": (lambda x: x.copysign(Y), [X]),
    "div.Scalar": (lambda x: A.div.Scalar(x, 1.5), [X]),
    "div.Tensor": (torch.div, [X, values(3)]),
    "elu_backward": (
        lambda g, y: A.elu_backward(g, 1.2, 0.9, 1.1, False, y),
        [X, Y],
    ),
    "fill.Tensor": (lambda v: A.fill(X, v), [values()]),
    "gelu_backward": (A.gelu_backward, [X, Y]),
    "hardshrink_backward": (lambda g: A.hardshrink_backward(g, Y, 0.5), [X]),
    "hardsigmoid_backward": (lambda g: A.hardsigmoid_backward(g, Y), [X]),
    "hardswish_backward": (A.hardswish_backward, [X, Y]),
    "hardtanh_backward": (lambda g: A.hardtanh_backward(g, Y, -1, 1), [X]),
    "heaviside": (lambda v: A.heaviside(torch.cat([X, torch.zeros(1, 3)]), v), [values(3)]),
    "huber_loss_backward": (
        lambda x, y: A.huber_loss_backward(G, x, y, 0, 0.7),
        [X, Y],
    ),
    "im2col": (lambda x: A.im2col(x, [2, 3], [1, 1], [0, 1], [2, 1]), [IMAGE]),
    "leaky_relu_backward": (lambda g: A.leaky_relu_backward(g, Y, 0.1, False), [X]),
    "max_unpool3d": (
        lambda x: F.max_unpool3d(x, maxima(F.max_pool3d, VOLUME, 2)[1], 2, output_size=[2, 3, 4]),
        [values(1, 2, 1, 1, 2)],
    ),
    "mean": (torch.mean, [X]),
    "mean.dim": (lambda x: x.mean(0), [X]),
    "mm": (torch.mm, [X, values(3, 4)]),
    "mse_loss_backward": (lambda x, y: A.mse_loss_backward(G.sum(), x, y, 1), [X, Y]),
    "native_batch_norm": (
        lambda x, w, b: A.native_batch_norm(x, w, b, values(3).clone(), unit(3), True, 0.1, 1e-5)[
            0
        ],
        [values(4, 3), values(3), values(3)],
    ),
    "native_layer_norm": (
        lambda x, w, b: A.native_layer_norm(x, [3], w, b, 1e-5)[0],
        [X, values(3), Y[0]],
    ),
    "neg": (torch.neg, [X]),
    "nll_loss2d_forward": (lambda x: F.nll_loss(x, PLACES, values(3)), [values(1, 3, 2, 2)]),
    "pow.Scalar": (lambda x: 1.7**x, [X]),
    "rsub.Scalar": (lambda x: A.rsub.Scalar(x, 1.5, 2), [X]),
    "select_backward": (lambda g: A.select_backward(g, [2, 3], 1, 2), [values(2)]),
    "sigmoid_backward": (A.sigmoid_backward, [X, unit(2, 3)]),
    "slice_backward": (lambda g: A.slice_backward(g, [2, 5], 1, 1, 5, 2), [values(2, 2)]),
    "smooth_l1_loss_backward": (
        lambda x, y: A.smooth_l1_loss_backward(G, x, y, 0, 0.7),
        [X, Y],
    ),
    "special_entr": (torch.special.entr, [unit(2, 3)]),
    "sub.Scalar": (lambda x: A.sub.Scalar(x, 1.5, 2), [X]),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, Y.sign()), [X]),
    "softplus_backward": (lambda g, x: A.softplus_backward(g, x, 1.3, 20), [X, Y]),
    "softshrink_backward": (lambda g: A.softshrink_backward(g, Y, 0.5), [X]),
    "sort.stable": (lambda x: x.sort(dim=1, stable=True).values, [X]),
    "stack": (lambda x, y: torch.stack([x, y, x], 1), [X, Y]),
    "sum": (torch.sum, [X]),
    "sum.dim_IntList": (lambda x: x.sum(1, keepdim=True), [X]),
    "tanh_backward": (A.tanh_backward, [X, unit(2, 3)]),
    "threshold_backward": (lambda g: A.threshold_backward(g, Y, 0.1), [X]),
}


def results(f: Callable[..., Any]) -> Function:
    """The differentiable results of f, as a list."""

    def listed(*primals: Tensor) -> list[Tensor]:
        returned = f(*primals)
        returned = [returned] if isinstance(returned, Tensor) else returned
        return [y for y in returned if y.is_floating_point() or y.is_complex()]

    return listed


@functools.cache
def reaching() -> dict[str, tuple[Function, list[Tensor]]]:
    """For each rule that is ever applied, a call that applies it; among op_db's, a short one."""
    found: dict[str, tuple[int, tuple[Function, list[Tensor]]]] = {}
    for name, (f, primals) in (FORWARD | OWN).items():
        if name_of(name) in _followed(results(f), primals):
            found[name_of(name)] = 0, (results(f), primals)
    for place in range(2):
        for op in ops(torch.float64):
            if place == 0 or not found.keys() >= set(COTANGENTS.operators):
                for case in cases(op, torch.float64, 2)[place:][:1]:
                    rules = _followed(case.differentiable, case.inputs)
                    for rule in rules:
                        if rule not in found or found[rule][0] > len(rules):
                            found[rule] = len(rules), (case.differentiable, case.inputs)
    return {name: sample for name, (_, sample) in found.items()}


def name_of(sample: str) -> str:
    return f"aten::{sample}"


def _followed(f: Function, primals: list[Tensor]) -> set[str]:
    """The rules applied by a first-order gradient; none if it is rejected or empty."""
    rules: set[str] = set()
    if not all(x.numel() for x in primals):
        return rules
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            with COTANGENTS.followed(rules):
                outputs, pull_back = tl.vjp(f, *primals)
            pull_back([torch.ones_like(y) for y in outputs])
        except RuntimeError:
            return set()
    return rules if all(y.numel() for y in outputs) else set()
