"""GradientCheck: the derivatives of one function against finite differences."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchlayers.core.errors import OutputError
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.testing.differentiable import (
    Differentiable,
    forward,
    pairing,
    reverse,
)
from torchlayers.transforms.testing.finite_differences import (
    Slope,
    precision,
    real,
    slopes,
    steps_for,
    tolerance_for,
)
from torchlayers.transforms.vjp import vjp

_DIRECTIONS = 2  # the second one meets the other sides of kinks


class WrongDerivativeError(AssertionError):
    """A derivative that differs from what is expected. what has a place for arguments' names."""

    def __init__(self, place: str, what: str, difference: "Difference") -> None:
        super().__init__(f"{place}{what}, is wrong: {difference}")
        self.place = place
        self.what = what
        self.difference = difference

    def with_argument(self, argument: str) -> "WrongDerivativeError":
        return WrongDerivativeError(self.place, self.what.format(argument), self.difference)


class Difference(NamedTuple):
    """A number that is not between two others, which are the same if there is no kink."""

    lower: float
    upper: float
    got: float
    allowed: float

    @property
    def expected(self) -> str:
        if self.lower == self.upper:
            return f"{self.lower:.6g}"
        return f"between {self.lower:.6g} and {self.upper:.6g}"

    def __str__(self) -> str:
        lower, upper, got, allowed = self
        ratio = f" ({got / lower:.4g} times as much)" if lower == upper and lower * got else ""
        return (
            f"expected {self.expected}, got {got:.6g}{ratio}. They differ by "
            f"{max(lower - got, got - upper):.6g}, and {allowed:.3g} is allowed."
        )


class GradientCheck:
    """The checks of one call of check_grads."""

    def __init__(
        self,
        name: str,
        order: int,
        modes: tuple[str, ...],
        atol: float | None,
        rtol: float | None,
        eps: float | None,
        generator: torch.Generator,
    ) -> None:
        self._name = name
        self._order = order
        self._modes = modes
        self._tolerances = atol, rtol
        self._eps = eps
        self._generator = generator

    def run(self, f: Differentiable, primals: Sequence[Tensor]) -> None:
        """Checks the first derivatives of f, then those of its derivatives."""
        outputs = f.call(*(x.clone() for x in primals))
        if not f.path:  # derivatives are no more precise, whatever their dtype
            self._precision = precision(outputs)
            default = tolerance_for(self._precision)
            self._atol, self._rtol = (
                default if tolerance is None else tolerance for tolerance in self._tolerances
            )
        cotangents = [
            torch.where(y.isfinite(), self._random(y), 0) for y in (y.detach() for y in outputs)
        ]
        for mode in self._modes:
            self._compare_values(f, primals, outputs, mode)
        for _ in range(_DIRECTIONS):
            self._along(f, primals, [self._random(x) for x in primals], cotangents)
        if len(f.path) + 1 == self._order:
            return
        for mode in self._modes:
            if mode == "fwd":
                self.run(forward(f), [*primals, *(self._random(x) for x in primals)])
            else:
                self.run(reverse(f), [*primals, *cotangents])

    def _along(
        self,
        f: Differentiable,
        primals: Sequence[Tensor],
        tangents: Sequence[Tensor],
        cotangents: Sequence[Tensor],
    ) -> None:
        """Compares the derivatives along the tangents; if they differ, looks for the argument."""
        failure = self._failure(f, primals, tangents, cotangents)
        if failure is None:
            return
        names = f.arguments
        for i, name in enumerate(names):
            alone = [t if i == j else torch.zeros_like(t) for j, t in enumerate(tangents)]
            at_argument = self._failure(f, primals, alone, cotangents)
            if at_argument is not None:
                raise at_argument.with_argument(name)
        raise failure.with_argument(f"{', '.join(names)} together")

    def _failure(
        self,
        f: Differentiable,
        primals: Sequence[Tensor],
        tangents: Sequence[Tensor],
        cotangents: Sequence[Tensor],
    ) -> WrongDerivativeError | None:
        """What is wrong along the tangents, in no argument in particular."""
        by_step = [
            slopes(f.call, primals, tangents, step, self._atol, self._precision)
            for step in ((self._eps,) if self._eps else steps_for(self._precision))
        ]
        for name, *of_result in zip(f.results, *by_step, strict=True):
            if not torch.stack([slope.is_finite for slope in of_result]).any(0).all():
                raise OutputError(
                    f"{self._place(f, ())}{name} is infinite or nan at "
                    f"a distance of {self._eps or steps_for(self._precision)[-1]:g} from the "
                    "arguments, or at them, but not on all sides. Choose arguments further inside "
                    "f's domain, or a smaller eps."
                )
        pushed = pulled = None
        if "fwd" in self._modes:
            pushed = [*jvp(f.call, tuple(primals), tuple(tangents))[1]]
            for i, name in enumerate(f.results):
                wrong = self._wrong_tangent(
                    pushed[i], [slopes_of_step[i] for slopes_of_step in by_step]
                )
                if wrong:
                    what = f"the tangent of {name}{wrong[0]}, along a direction of {{}}"
                    return WrongDerivativeError(self._place(f, ("fwd",)), what, wrong[1])
        if "rev" in self._modes:
            # Nothing of what has no derivative in this direction.
            cotangents = [
                torch.where(_in_shape_of(g, slope.is_defined), g, 0)
                for g, slope in zip(cotangents, by_step[-1], strict=True)
            ]
            pulled = pairing(vjp(f.call, *primals)[1](tuple(cotangents)), tangents)
            wrongs = [
                self._wrong_pairing(pulled, cotangents, result_slopes)
                for result_slopes in by_step
                if result_slopes is by_step[-1]
                or all(bool(slope.is_smooth.all()) for slope in result_slopes)
            ]
            if wrongs[0] is not None and all(wrongs):
                return WrongDerivativeError(
                    self._place(f, ("rev",)), "the cotangent of {}, times a direction", wrongs[0]
                )
        if pushed is not None and pulled is not None:
            pushed = [torch.where(g == 0, 0, t) for g, t in zip(cotangents, pushed, strict=True)]
            there = pairing(cotangents, pushed)
            size = _size(cotangents, pushed)
            allowed = self._atol * 1e-3 + self._rtol * 1e-3 * size
            if not (there - pulled).abs() <= allowed:
                return WrongDerivativeError(
                    self._place(f, ("fwd and rev",)),
                    "jvp and vjp with respect to {} are not transposes of each other: the tangents "
                    "times the vjp, against the cotangents times the jvp",
                    Difference(there.item(), there.item(), pulled.item(), allowed.item()),
                )
        return None

    def _wrong_tangent(
        self, tangent: Tensor, by_step: Sequence[Slope]
    ) -> tuple[str, Difference] | None:
        """The element of a tangent that is furthest from its bounds, and by how much."""
        got = real(tangent.detach())
        if got.numel() == 0:
            return None
        excess = []
        for i, slope in enumerate(by_step):
            size = torch.maximum(slope.lower.abs(), slope.upper.abs())
            allowed = self._atol + self._rtol * size + slope.noise
            beyond = torch.maximum(slope.lower - got, got - slope.upper) - allowed
            beyond = torch.where(beyond.isnan(), torch.inf, beyond)
            beyond = torch.where(slope.is_defined, beyond, -torch.inf)
            if i + 1 < len(by_step):  # the smallest step decides where there is a kink
                beyond = torch.where(slope.is_smooth, beyond, torch.inf)
            excess.append(beyond)
        worst = torch.stack(excess).amin(0)
        if not (worst > 0).any():
            return None
        place = int(worst.argmax())
        slope = by_step[int(torch.stack(excess).reshape(len(excess), -1)[:, place].argmin())]
        lower, upper, noise = (x.flatten()[place].item() for x in slope[:3])
        most = self._atol + self._rtol * max(abs(lower), abs(upper)) + noise
        index = [int(i) for i in torch.unravel_index(torch.tensor(place), got.shape)]
        part = ""
        if tangent.is_complex():
            part = (", the real part", ", the imaginary part")[index.pop()]
        where = f" at ({', '.join(map(str, index))}){part}" if index else part
        return where, Difference(lower, upper, got.flatten()[place].item(), most)

    def _wrong_pairing(
        self, got: Tensor, cotangents: Sequence[Tensor], result_slopes: Sequence[Slope]
    ) -> Difference | None:
        lower, upper, allowed = 0.0, 0.0, self._atol
        for cotangent, slope in zip(cotangents, result_slopes, strict=True):
            weight = torch.where(slope.is_defined & slope.is_finite, real(cotangent), 0)
            ends = torch.stack([slope.lower, slope.upper]).nan_to_num(0, 0, 0) * weight
            lower += ends.amin(0).sum().item()
            upper += ends.amax(0).sum().item()
            noise = torch.where(weight == 0, 0, slope.noise) * weight.abs()
            allowed += (self._rtol * ends.abs().amax(0) + noise).sum().item()
        value = got.item()
        if lower - allowed <= value <= upper + allowed:
            return None
        return Difference(lower, upper, value, allowed)

    def _compare_values(
        self, f: Differentiable, primals: Sequence[Tensor], outputs: Sequence[Tensor], mode: str
    ) -> None:
        """The value that comes with a derivative is the function's."""
        if mode == "fwd":
            values = jvp(f.call, tuple(primals), tuple(map(torch.zeros_like, primals)))[0]
        else:
            values = vjp(f.call, *primals)[0]
        for name, expected, got in zip(f.results, outputs, values, strict=True):
            try:
                torch.testing.assert_close(
                    got.detach(),
                    expected.detach(),
                    atol=self._atol,
                    rtol=self._rtol,
                    equal_nan=True,
                )
            except AssertionError as error:
                raise AssertionError(
                    f"{self._place(f, (mode,))}the value of {name} is another one than without "
                    f"derivatives: {error}"
                ) from None

    def _place(self, f: Differentiable, mode: tuple[str, ...]) -> str:
        modes = " over ".join([*mode, *reversed(f.path)])
        where = f", order {len(f.path) + 1}, mode {modes}" if mode else ""
        return f"torchlayers: check_grads: {self._name}{where}: "

    def _random(self, like: Tensor) -> Tensor:
        drawn = torch.randn(
            like.shape, generator=self._generator, dtype=like.dtype, device=self._generator.device
        )
        return drawn.to(like.device)


def _in_shape_of(tensor: Tensor, is_defined: Tensor) -> Tensor:
    """Flags of real and imaginary parts as flags of complex numbers."""
    return is_defined.all(-1) if tensor.is_complex() else is_defined


def _size(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return pairing([real(a).abs() for a in left], [real(b).abs() for b in right])
