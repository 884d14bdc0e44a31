"""Where derivatives at special values differ from plain autograd's, and why ours are right."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tests.rules.special_values.calls import Call

FIRST = ("vjp", "jvp")
SECOND = ("vjp(vjp)", "jvp(vjp)")


class Difference(NamedTuple):
    """For these rules and derivatives, the results concerned (ours, and plain autograd's)."""

    rules: tuple[str, ...]
    derivatives: tuple[str, ...]
    where: Callable[[Tensor, Tensor], Tensor]
    reason: str

    def __str__(self) -> str:
        return f"{self.rules[0]}, {' '.join(self.derivatives)}"


def anywhere(ours: Tensor, theirs: Tensor) -> Tensor:
    return torch.ones_like(theirs, dtype=torch.bool)


def nan_in_torch(ours: Tensor, theirs: Tensor) -> Tensor:
    return theirs.isnan()


def nan_here(ours: Tensor, theirs: Tensor) -> Tensor:
    return ours.isnan()


MODES = (
    "forward mode is not the transpose of reverse mode in torch; ours is that of torch's reverse"
)
LIMIT = "torch's formula is inf / inf, inf - inf or 0 * inf where ours is the limit, or more of it"
RANGE = "squares and quotients of denormals leave the range, in torch earlier than here"

DIFFERENCES = [
    Difference(("maximum", "minimum"), ("jvp",), anywhere, f"of nan: {MODES}"),
    Difference(("fmax", "fmin"), ("jvp",), anywhere, f"of ties: {MODES}"),
    Difference(("clamp_max.Tensor", "clamp_min.Tensor"), ("jvp",), anywhere, f"of nan: {MODES}"),
    Difference(("clamp.Tensor",), ("jvp",), anywhere, f"of nan: {MODES}"),
    Difference(("max", "min", "median", "nanmedian"), ("jvp",), nan_in_torch, f"of nan: {MODES}"),
    Difference(("smooth_l1_loss_backward",), ("jvp",), nan_in_torch, LIMIT),
    Difference(("div.Tensor_mode",), ("jvp",), nan_in_torch, LIMIT),
    Difference(
        ("_prelu_kernel",),
        ("jvp", *SECOND),
        anywhere,
        "at zero torch's backward has the weight for a slope, and all its other derivatives one",
    ),
    Difference(
        ("_prelu_kernel_backward",), (*FIRST, *SECOND), anywhere, "as those of _prelu_kernel"
    ),
    Difference(("atan2",), ("vjp",), anywhere, RANGE),
    Difference(("atan2",), ("jvp", *SECOND), anywhere, f"at the origin, and near: {RANGE}"),
    Difference(("hypot",), SECOND, anywhere, RANGE),
    Difference(("addcdiv",), ("vjp", *SECOND), nan_in_torch, LIMIT),
    Difference(("div.Tensor", "div.Tensor_mode"), SECOND, nan_in_torch, LIMIT),
    Difference(("logaddexp", "logaddexp2"), SECOND, nan_in_torch, LIMIT),
    Difference(("gelu_backward",), SECOND, nan_in_torch, LIMIT),
    Difference(("mish",), SECOND, nan_in_torch, LIMIT),
    Difference(
        ("soft_margin_loss",),
        FIRST,
        lambda ours, theirs: theirs.abs() < 1e-36,
        "ATen's sigmoid(-90) is zero, and its exp(-90) is not",
    ),
    Difference(
        ("soft_margin_loss",), SECOND, anywhere, "the digits of 1 - sigmoid(x), times a square"
    ),
    Difference(
        ("logit", "elu_backward"),
        (*FIRST, *SECOND),
        lambda ours, theirs: ~ours.isfinite(),
        "at nan and -0 ATen's kernels say one thing in a vector and another in the tail after it",
    ),
    Difference(("soft_margin_loss",), FIRST, nan_in_torch, LIMIT),
    Difference(("softplus_backward",), (*FIRST, *SECOND), nan_in_torch, LIMIT),
    Difference(("elu_backward",), (*FIRST, *SECOND), nan_in_torch, LIMIT),
    Difference(("copysign.Scalar", "copysign.Tensor"), SECOND, nan_in_torch, LIMIT),
    Difference(("pow.Scalar",), SECOND, nan_in_torch, LIMIT),
    Difference(("logit",), ("jvp(vjp)",), nan_in_torch, "outside its domain both are made up"),
    Difference(
        ("gelu_backward",),
        (*FIRST, *SECOND),
        lambda ours, theirs: (theirs.abs() < 1e-200) | ours.isnan(),
        "1 - tanh(x) ** 2 is zero to the last digit where torch keeps 1 / cosh(x) ** 2",
    ),
    Difference(
        ("gelu_backward",),
        ("jvp(vjp)",),
        lambda ours, theirs: (ours - theirs).abs() < 1e13,
        "numbers of 1e19 that cancel out leave nothing of what is added to them",
    ),
    Difference(
        ("pow.Tensor_Tensor",),
        SECOND,
        anywhere,
        "torch takes x ** 0 for constant in the exponent, where the slope by x has the derivative "
        "1 / x; ours is that for positive x",
    ),
    Difference(
        ("sinc",), (*FIRST, *SECOND), anywhere, "torch subtracts what is equal, near zero; at 1e19"
    ),
    Difference(
        ("special_i1", "special_i1e"), (*FIRST, *SECOND), nan_here, "torch makes 1/2 of nan"
    ),
    Difference(("i0",), SECOND, nan_here, "torch makes 1/2 of nan, as the derivative of i1"),
    Difference(
        ("special_log_ndtr",),
        (*FIRST, *SECOND),
        anywhere,
        "at -20 and beyond two large numbers cancel out in torch; at infinity it is nan",
    ),
    Difference(("mvlgamma",), (*FIRST, *SECOND), anywhere, "torch adds 0 to -0 in its derivative"),
    Difference(
        ("xlogy.Tensor", "special_xlog1py"),
        ("jvp(vjp)",),
        anywhere,
        "there is no function around 0 log(-y): one order of differentiation is masked, and not "
        "the other",
    ),
    Difference(("igamma", "igammac"), ("jvp(vjp)",), anywhere, RANGE),
    Difference(
        ("binary_cross_entropy_backward",),
        (*FIRST, *SECOND),
        anywhere,
        "of what is no probability nothing is said",
    ),
    Difference(
        ("binary_cross_entropy_with_logits",), SECOND, anywhere, "its weights are infinite, too"
    ),
]

# Derivatives that torch lacks, by rule.
NOT_IN_TORCH = {
    "hardsigmoid": SECOND,
    "huber_loss_backward": ("jvp",),
    "igamma": ("jvp",),
    "igammac": ("jvp",),
    "native_dropout_backward": ("jvp",),
    "special_zeta": ("jvp",),
    "special_zeta.self_scalar": ("jvp",),
}

# Rules of operators that reject such values.
REFUSED = {"binary_cross_entropy": "its input has to be a probability"}


def listed(call: Call, derivative: str) -> list[Difference]:
    rule = call.rule.removeprefix("aten::")
    return [d for d in DIFFERENCES if rule in d.rules and derivative in d.derivatives]
