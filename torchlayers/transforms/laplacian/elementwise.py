"""Rules of elementwise operators: a line each, with the first and second derivative."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.laplacian import general
from torchlayers.transforms.laplacian.layer import ForwardLaplacian, is_followed, plus
from torchlayers.transforms.laplacian.products import of_two
from torchlayers.transforms.laplacian.rows import Diagonal, scaled
from torchlayers.transforms.layers.layer_tensor import LayerTensor

Derivatives = Callable[..., tuple[Any, Any]]


def rule_of(derivatives: Derivatives, is_analytic: bool = True) -> Callable[..., Any]:
    """The rule of an elementwise operator of one tensor.

    Args:
        derivatives: takes the value x, the result y and the operator's other arguments; returns the
            first and second derivative: tensors, numbers, or None for a second derivative of zero.
        is_analytic: whether they hold for complex numbers.
    """

    def rule(layer: ForwardLaplacian, op: Any, x: LayerTensor, *args: Any, **kwargs: Any) -> Any:
        if x.parts is None or any(is_followed(arg) for arg in args):
            return general.second_order(layer, op, x, *args, **kwargs)
        if not is_analytic and x.value.is_complex():
            return general.second_order(layer, op, x, *args, **kwargs)
        args = tuple(arg.value if isinstance(arg, LayerTensor) else arg for arg in args)
        y = op(x.value, *args, **kwargs)
        first, second = derivatives(x.value, y, *args, **kwargs)
        rows, laplacian = x.parts.rows, x.parts.laplacian
        straight = None if laplacian is None else _by(laplacian, first)
        if second is not None:
            squares = layer.squares(rows, x.value.shape)
            if straight is None or not isinstance(second, Tensor):
                straight = plus(straight, second * squares)
            else:
                straight = torch.addcmul(straight, second, squares)
        if isinstance(rows, Diagonal) or not isinstance(first, Tensor):
            return layer.result(y, scaled(rows, first), straight)
        return layer.result(y, lambda: rows * first, straight)

    return rule


def _by(laplacian: Tensor, factor: Tensor | float) -> Tensor:
    return laplacian if isinstance(factor, int) and factor == 1 else laplacian * factor


def through_result(
    first: Callable[[Tensor, Tensor], Tensor], ratio: tuple[float, float]
) -> Callable[..., Any]:
    """The rule of an operator whose first derivative is one operator on a tensor and the result.

    It reads and writes the rows once, where a separate derivative takes several passes.

    Args:
        first: the derivative times a tensor, from these and the result.
        ratio: the second derivative divided by the first: (a, b) stands for a + b y.
    """

    def rule(layer: ForwardLaplacian, op: Any, x: LayerTensor) -> LayerTensor:
        y = op(x.value)
        rows, laplacian = x.parts.rows, x.parts.laplacian
        squares = layer.squares(rows, x.value.shape)
        fixed = laplacian if not ratio[0] else plus(laplacian, ratio[0] * squares)
        bent = (
            ratio[1] * (y * squares)
            if fixed is None
            else torch.addcmul(fixed, y, squares, value=ratio[1])
        )
        if isinstance(rows, Diagonal):
            return layer.result(y, rows.replaced(first(rows.scale, y)), first(bent, y))
        return layer.result(y, lambda: first(rows, y.unsqueeze(0)), first(bent, y))

    return rule


tanh = through_result(aten.tanh_backward, (0, -2))
sigmoid = through_result(aten.sigmoid_backward, (1, -2))


def tanh_backward(layer: ForwardLaplacian, op: Any, g: LayerTensor, y: LayerTensor) -> LayerTensor:
    """g (1 - y^2)"""
    g_, y_ = g.value, y.value
    first = 1 - y_ * y_
    by_y = -2 * y_
    return of_two(layer, op(g_, y_), g, y, (first, by_y * g_), (None, by_y, -2 * g_))


def sigmoid_backward(
    layer: ForwardLaplacian, op: Any, g: LayerTensor, y: LayerTensor
) -> LayerTensor:
    """g y (1 - y)"""
    g_, y_ = g.value, y.value
    slope = 1 - 2 * y_
    first = y_ * (1 - y_)
    return of_two(layer, op(g_, y_), g, y, (first, slope * g_), (None, slope, -2 * g_))


def _log_sigmoid(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(x)
    return 1 - s, -s * (1 - s)


def _silu(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(x)
    slope = s * (1 - s)
    return s + x * slope, slope * (2 + x * (1 - 2 * s))


def _gelu(x: Tensor, y: Tensor, *, approximate: str = "none") -> tuple[Tensor, Tensor]:
    if approximate == "none":
        density = torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        below = 0.5 * torch.erfc(x * -math.sqrt(0.5))
        return below + x * density, density * (2 - x * x)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = x * x
    t = torch.tanh(scale * (x + cubic * x * square))
    slope = 1 - t * t  # of tanh
    inner = scale * (1 + 3 * cubic * square)
    first = 0.5 * (1 + t) + 0.5 * x * slope * inner
    bend = inner * inner * -2 * t + 6 * scale * cubic * x
    return first, slope * (inner + 0.5 * x * bend)


def _softplus(
    x: Tensor, y: Tensor, beta: float = 1, threshold: float = 20
) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(x * beta)
    is_linear = x * beta > threshold
    return torch.where(is_linear, 1.0, s), torch.where(is_linear, 0.0, beta * s * (1 - s))


def _elu(
    x: Tensor, y: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> tuple[Tensor, Tensor]:
    below = alpha * scale * input_scale * torch.exp(x * input_scale)
    return torch.where(x > 0, scale, below), torch.where(x > 0, 0.0, below * input_scale)


def _pow(x: Tensor, y: Tensor, exponent: Any) -> tuple[Any, Any]:
    if isinstance(exponent, Tensor):
        return _pow_by_tensor(x.to(y.dtype), exponent.to(y.dtype))
    if exponent in (0, 1):
        return (torch.zeros_like(x) if exponent == 0 else 1), None
    if exponent == 2:
        return 2 * x, 2
    first = exponent * x ** (exponent - 1)
    return first, exponent * (exponent - 1) * x ** (exponent - 2)


def _pow_by_tensor(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    def derivative(factor: Tensor, power: Tensor) -> Tensor:
        return torch.where(factor == 0, 0.0, factor * x**power)

    return derivative(p, p - 1), derivative(p * (p - 1), p - 2)


def _tan(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = 1 + y * y
    return first, 2 * y * first


def _atan(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = 1 / (1 + x * x)
    return first, -2 * x * first * first


def _erf(sign: float) -> Derivatives:
    def derivatives(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = (sign * 2 / math.sqrt(math.pi)) * torch.exp(-x * x)
        return first, -2 * x * first

    return derivatives


def _inverse_sine(sign: float) -> Derivatives:
    def derivatives(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = sign * (1 - x * x).rsqrt()
        return first, x * first / (1 - x * x)

    return derivatives


def _log(scale: float, shift: float = 0) -> Derivatives:
    def derivatives(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        inverse = 1 / (x + shift if shift else x)
        return scale * inverse, -scale * inverse * inverse

    return derivatives


def _exponential(rate: float) -> Derivatives:
    return lambda x, y: (rate * y, rate * rate * y)


def _reciprocal(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    square = y * y
    return -square, 2 * square * y


def _rsqrt(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    cube = y * y * y
    return -0.5 * cube, 0.75 * cube * y * y


def _sqrt(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = 0.5 / y
    return first, -0.5 * first / x


def _relu(x: Tensor, y: Tensor) -> tuple[Tensor, None]:
    return (x > 0).to(x.dtype), None


def _sinh(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cosh(x), y


def _by_factor(x: Tensor, y: Tensor, factor: Any) -> tuple[Any, None]:
    return factor, None


def _shifted(x: Tensor, y: Tensor, *rest: Any, **options: Any) -> tuple[int, None]:
    return 1, None


# Valid for complex numbers too.
ANALYTIC: dict[Any, Derivatives] = {
    aten.exp: _exponential(1),
    aten.exp2: _exponential(math.log(2)),
    aten.expm1: lambda x, y: (y + 1, y + 1),
    aten.log: _log(1),
    aten.log2: _log(1 / math.log(2)),
    aten.log10: _log(1 / math.log(10)),
    aten.log1p: _log(1, shift=1),
    aten.sin: lambda x, y: (torch.cos(x), -y),
    aten.cos: lambda x, y: (-torch.sin(x), -y),
    aten.tan: _tan,
    aten.sinh: _sinh,
    aten.cosh: lambda x, y: (torch.sinh(x), y),
    aten.atan: _atan,
    aten.asin: _inverse_sine(1),
    aten.acos: _inverse_sine(-1),
    aten.sqrt: _sqrt,
    aten.rsqrt: _rsqrt,
    aten.reciprocal: _reciprocal,
    aten.pow.Tensor_Scalar: _pow,
    aten.neg: lambda x, y: (-1, None),
    aten.mul.Scalar: _by_factor,
    # By a tensor: a mean of no elements divides by zero.
    aten.div.Scalar: lambda x, y, divisor: (x.new_ones(()) / divisor, None),
    aten.add.Scalar: _shifted,
    aten.sub.Scalar: _shifted,
    aten.rsub.Scalar: lambda x, y, other, alpha=1: (-alpha, None),
}
REAL: dict[Any, Derivatives] = {
    aten.abs: lambda x, y: (torch.sign(x), None),
    aten.relu: _relu,
    aten.gelu: _gelu,
    aten.silu: _silu,
    aten.softplus: _softplus,
    aten.elu: _elu,
    aten.erf: _erf(1),
    aten.erfc: _erf(-1),
}


def log_sigmoid(layer: ForwardLaplacian, op: Any, x: LayerTensor) -> Any:
    """log_sigmoid_forward, which also returns a buffer for its backward."""
    value, buffer = op(x.value)
    rule = rule_of(_log_sigmoid)
    return rule(layer, lambda *_: value, x), buffer
