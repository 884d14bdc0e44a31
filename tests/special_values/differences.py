"""Where derivatives at special values are not plain autograd's, and why ours stand."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tests.special_values.calls import Call

FIRST = ("vjp", "jvp")
SECOND = ("vjp(vjp)", "jvp(vjp)")


class Difference(NamedTuple):
    """Of these rules, in these derivatives, of such results (ours, and plain autograd's)."""

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


def nothing_in_torch(ours: Tensor, theirs: Tensor) -> Tensor:
    """What is next to zero, or nan."""
    return theirs.isnan() | (theirs.abs() < 1e-200)


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
    Difference(("mse_loss",), ("jvp",), nan_in_torch, LIMIT),
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
    Difference(("soft_margin_loss",), (*FIRST, *SECOND), nan_in_torch, LIMIT),
    Difference(("softplus_backward",), (*FIRST, *SECOND), nan_in_torch, LIMIT),
    Difference(("elu_backward",), (*FIRST, *SECOND), nan_in_torch, LIMIT),
    Difference(("copysign.Scalar", "copysign.Tensor"), SECOND, nan_in_torch, LIMIT),
    Difference(("pow.Scalar",), SECOND, nan_in_torch, LIMIT),
    Difference(("logit",), ("jvp(vjp)",), nan_in_torch, "outside its domain both are made up"),
    Difference(
        ("gelu_backward",),
        FIRST,
        lambda ours, theirs: theirs.abs() < 1e-200,
        "1 - tanh(x) ** 2 is zero to the last digit where torch keeps 1 / cosh(x) ** 2",
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
        ("jvp", *SECOND),
        anywhere,
        "of what is no probability nothing is said",
    ),
    Difference(
        ("binary_cross_entropy_with_logits",), SECOND, anywhere, "its weights are infinite, too"
    ),
]

# Derivatives that torch has not, by rule.
NOT_IN_TORCH = {
    "hardsigmoid": SECOND,
    "huber_loss_backward": ("jvp",),
    "igamma": ("jvp",),
    "igammac": ("jvp",),
}


def listed(call: Call, derivative: str) -> list[Difference]:
    rule = call.rule.removeprefix("aten::")
    return [d for d in DIFFERENCES if rule in d.rules and derivative in d.derivatives]
