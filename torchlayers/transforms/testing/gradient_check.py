"""check_grads: derivatives of any order and mode, against finite differences."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import DtypeError, NotTensorError, OutputError, TransformError
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.testing.finite_differences import (
    Function,
    Slope,
    precision,
    real,
    slopes,
    steps_for,
    tolerance_for,
)
from torchlayers.transforms.vjp import vjp

_MODES = ("fwd", "rev")
_DIRECTIONS = 2  # the second one meets the other sides of kinks
_WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


def check_grads(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    order: int,
    modes: Sequence[str] | str = _MODES,
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
    argnums: int | tuple[int, ...] | None = None,
) -> None:
    """Checks a function's derivatives of every order up to `order`, in forward and reverse mode.

    At each order, jvp and vjp are compared with central differences along random directions, and
    with each other: they have to be transposes. The next order is that of the jvp, as a function of
    primals and tangents, and of the vjp, as a function of primals and cotangents; so order 2 checks
    forward over forward, reverse over forward, forward over reverse and reverse over reverse.

    Args:
        f: takes args; returns a pytree. Its tensors of floating-point and complex dtypes are
            differentiated, its other leaves ignored. It must return the same if it is called again.
        args: pytrees. Their tensors of floating-point and complex dtypes are the point at which f
            is differentiated; all are converted to double precision. Other leaves are constants,
            as is what f captures.
        order: 1 for first derivatives.
        modes: of "fwd" and "rev", those to be checked; both by default.
        atol, rtol: a derivative may differ by ``atol + rtol * |expected|``, and by the rounding
            errors of the differences. By default, both are 1e-6 if f computes in double precision,
            and 1e-2 if some result is in single precision.
        eps: the step of the differences; by default, 1e-3 and, where that fails, 1e-5 (more if f
            computes in lower precision).
        argnums: the positions of the arguments to differentiate; by default, all.
    Raises:
        AssertionError: a derivative is wrong. The message names the order, the modes, the result,
            the leaf of the arguments, the value expected and the value found. Or f returns
            something else when it is called again.
        TransformError: order, modes or eps is invalid, or args is not a tuple.
        ArgnumsError: argnums does not match args.
        NotTensorError: args have nothing to differentiate.
        OutputError: f returns nothing to differentiate, or is infinite or nan in one direction
            and not in the other. Choose a point further inside its domain, or a smaller eps.
        DtypeError: f can't be called in double precision.

    Where f has a kink in the direction taken, any number between the derivatives of its two sides
    is right: ``relu`` at 0 may have the derivative 0 or 1. Where it has a jump, or is infinite or
    nan, there is nothing to compare with. For complex numbers, jvp is the real-linear derivative,
    and vjp its adjoint for the inner product ``Re(sum(conj(a) * b))``. The directions are the same
    at each call, and the global random state is neither read nor changed.

    Example:
        >>> check_grads(lambda x, y: {"z": x.sin() @ y}, (torch.ones(2), torch.ones(2, 3)), order=2)
        >>> class Twice(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        ...     @staticmethod
        ...     def backward(ctx, cotangent):
        ...         return 3 * cotangent
        >>> check_grads(Twice.apply, (torch.ones(()),), order=1, modes="rev")
        Traceback (most recent call last):
        AssertionError: torchlayers: check_grads: Twice.apply, order 1, mode rev: the cotangent of
        argument 0, times a direction, is wrong: expected -0.904346, got -1.35652 (1.5 times as
        much). They differ by 0.452173, and 1.9e-06 is allowed.

    Source: jax.test_util.check_grads.
    """
    kinds = _checked_modes(modes)
    if not isinstance(order, int) or order < 1:
        raise TransformError(
            f"torchlayers: check_grads: order must be a positive int, got {order!r}."
        )
    if eps is not None and not eps > 0:
        raise TransformError(f"torchlayers: check_grads: eps must be positive, got {eps!r}.")
    if not isinstance(args, tuple):
        raise TransformError(
            "torchlayers: check_grads: args must be the tuple of f's arguments, got "
            f"{type(args).__name__}."
        )
    function, primals = _flat(f, args, argnums)
    _check_repeats(function, primals)
    generator = torch.Generator().manual_seed(0)
    check = GradientCheck(_name_of(f), order, kinds, atol, rtol, eps, generator)
    try:
        check.run(function, primals)
    except WrongDerivativeError as error:
        raise AssertionError(str(error)) from None


def _name_of(f: Callable[..., Any]) -> str:
    """The name of a function; with its class, if it is a class method (Function.apply)."""
    owner = getattr(f, "__self__", None)
    return f"{owner.__name__}.{f.__name__}" if isinstance(owner, type) else pytree.name_of(f)


class Differentiable(NamedTuple):
    """A function of tensors that returns a tuple of tensors, all of them differentiable.

    Attributes:
        path: the modes in which it has been differentiated, first to last.
        arguments, results: what its arguments and results are, for messages.
    """

    call: Function
    path: tuple[str, ...]
    arguments: list[str]
    results: list[str]


def has_derivatives(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _checked_modes(modes: Sequence[str] | str) -> tuple[str, ...]:
    kinds = (modes,) if isinstance(modes, str) else tuple(modes)
    if not kinds or not {*kinds} <= {*_MODES}:
        raise TransformError(
            f"torchlayers: check_grads: modes must be some of 'fwd' and 'rev', got {modes!r}."
        )
    return tuple(kind for kind in _MODES if kind in kinds)


def _flat(
    f: Callable[..., Any], args: tuple[Any, ...], argnums: int | tuple[int, ...] | None
) -> tuple[Differentiable, list[Tensor]]:
    """f as a function of the leaves to differentiate, and these in double precision."""
    places = (
        range(len(args)) if argnums is None else pytree.positions("check_grads", argnums, len(args))
    )
    leaves, spec = pytree.flatten(args)
    leaves = [
        leaf.detach().to(_WIDE.get(leaf.dtype, leaf.dtype)) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    ]
    owners = [place for place, arg in enumerate(args) for _ in pytree.leaves(arg)]
    chosen = [i for i, owner in enumerate(owners) if owner in places and has_derivatives(leaves[i])]
    if not chosen:
        which = "args have" if argnums is None else f"argnums={argnums} choose"
        raise NotTensorError(
            f"torchlayers: check_grads: {which} no tensor of a floating-point or complex dtype."
        )

    def outputs(*tensors: Tensor) -> list[tuple[str, Tensor]]:
        filled = list(leaves)
        for place, tensor in zip(chosen, tensors, strict=True):
            filled[place] = tensor
        results = pytree.leaves_by_path(f(*pytree.unflatten(filled, spec)))
        return [(path, leaf) for path, leaf in results if has_derivatives(leaf)]

    primals = [leaves[i] for i in chosen]
    try:
        results = outputs(*(x.clone() for x in primals))
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        raise DtypeError(
            "torchlayers: check_grads: f can't be called with its arguments in double precision, "
            "which finite differences need. Convert what it captures too (module.double()), or "
            f"pass it as an argument. ({error})"
        ) from error
    if not results:
        raise OutputError(
            "torchlayers: check_grads: f returns no tensor of a floating-point or complex dtype."
        )
    call = lambda *tensors: tuple(leaf for _, leaf in outputs(*tensors))  # noqa: E731
    arguments = [pytree.leaf_name("argument", args, i) for i in chosen]
    return Differentiable(call, (), arguments, [f"result{path}" for path, _ in results]), primals


def _check_repeats(f: Differentiable, primals: Sequence[Tensor]) -> None:
    once, again = (f.call(*(x.clone() for x in primals)) for _ in range(2))
    for name, x, y in zip(f.results, once, again, strict=True):
        if not torch.equal(x.nan_to_num(nan=0.5), y.nan_to_num(nan=0.5)):
            raise AssertionError(
                f"torchlayers: check_grads: {name} is another one when f is called again with the "
                "same arguments, so it has no derivatives: f draws random numbers (pass it a seed) "
                "or depends on what it has changed."
            )


class WrongDerivativeError(AssertionError):
    """A derivative that differs from what is expected. what has a place for arguments' names."""

    def __init__(self, place: str, what: str, difference: "Difference") -> None:
        super().__init__(f"{place}{what}, is wrong: {difference}")
        self.place = place
        self.what = what
        self.difference = difference

    def of(self, argument: str) -> "WrongDerivativeError":
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
                raise at_argument.of(name)
        raise failure.of(f"{', '.join(names)} together")

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


def forward(f: Differentiable) -> Differentiable:
    """The jvp of f, as a function of primals and tangents: its values and their tangents."""
    count = len(f.arguments)

    def call(*args: Tensor) -> tuple[Tensor, ...]:
        outputs, tangents = jvp(f.call, args[:count], args[count:])
        return (*outputs, *tangents)

    arguments, results = (
        [*names, *(f"the tangent of {name}" for name in names)]
        for names in (f.arguments, f.results)
    )
    return Differentiable(call, (*f.path, "fwd"), arguments, results)


def reverse(f: Differentiable) -> Differentiable:
    """The vjp of f, as a function of primals and cotangents: the cotangents of the primals."""
    count = len(f.arguments)

    def call(*args: Tensor) -> tuple[Tensor, ...]:
        return tuple(vjp(f.call, *args[:count])[1](args[count:]))

    arguments = [*f.arguments, *(f"the cotangent of {name}" for name in f.results)]
    results = [f"the cotangent of {name}" for name in f.arguments]
    return Differentiable(call, (*f.path, "rev"), arguments, results)


def pairing(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The real inner product of two lists of tensors."""
    return torch.stack([(real(a) * real(b)).sum() for a, b in zip(left, right, strict=True)]).sum()


def _in_shape_of(tensor: Tensor, is_defined: Tensor) -> Tensor:
    """Flags of real and imaginary parts as flags of complex numbers."""
    return is_defined.all(-1) if tensor.is_complex() else is_defined


def _size(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return pairing([real(a).abs() for a in left], [real(b).abs() for b in right])
