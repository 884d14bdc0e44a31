"""custom_jvp: a function with a rule for tangents; reverse mode transposes the rule."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.autograd_function.custom_derivatives.declaration import (
    CustomFunction,
    DifferentiatedArguments,
    OutputStructure,
    is_float,
    not_input,
    or_zeros,
    save_call,
)
from torchlayers.core import pytree
from torchlayers.core.annotations import P, R
from torchlayers.core.errors import CallError, FunctionError, MissingDerivativeError
from torchlayers.core.torch_private import functorch
from torchlayers.remat.deferred import deferred
from torchlayers.transforms.vjp import vjp

Rule = TypeVar("Rule", bound=Callable[..., Any])


class custom_jvp(CustomFunction[P, R]):
    """A function with its own derivative, given as a rule for tangents.

    Reverse mode transposes the rule, so it serves every transform, to any order. The rule is made
    of differentiable operators, and is linear in the tangents.

    Args:
        fun: takes and returns tensors and pytrees of tensors. Tensors that it captures are
            constants to the rule: pass them as arguments, if they are to be differentiated.
        nondiff_argnums: positions of arguments that are not differentiated, such as functions. The
            rule takes them first.
    Raises:
        MissingDerivativeError: there is no rule when the function is called.
        FunctionError: the rule returned something other than a pair, or tangents that do not match.
        CallError: the arguments do not match the function's signature, or are by keyword only.
        ArgnumsError: nondiff_argnums does not match the arguments.
    Example:
        >>> @torchlayers.custom_jvp
        ... def log1pexp(x):
        ...     return torch.log(1 + torch.exp(x))
        >>> @log1pexp.defjvp
        ... def log1pexp_jvp(primals, tangents):
        ...     (x,), (t,) = primals, tangents
        ...     return log1pexp(x), t / (1 + torch.exp(-x))
        >>> torchlayers.grad(log1pexp)(torch.tensor(100.0))
        tensor(1.)

    Source: jax.custom_jvp.
    """

    api = "custom_jvp"
    _rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Rule) -> Rule:
        """Sets the rule, and returns it.

        Args:
            rule: ``rule(*nondiff_args, primals, tangents)`` returns ``(output, output_tangent)``.
                primals and tangents are tuples with one entry for each differentiated argument.
                The tangent of an integer tensor is a tensor of zeros.
        Example:
            >>> @torchlayers.custom_jvp(nondiff_argnums=0)
            ... def apply(f, x):
            ...     return f(x)
            >>> @apply.defjvp
            ... def apply_jvp(f, primals, tangents):
            ...     return f(*primals), 10 * tangents[0]
            >>> torchlayers.grad(apply, argnums=1)(torch.sin, torch.tensor(0.0))
            tensor(10.)
        """
        self._rule = rule
        return rule

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Sets a rule for each argument; the output's tangent is the sum of theirs.

        Args:
            jvps: ``jvp(tangent, output, *primals)`` returns the output's tangent; None for an
                argument on which the output does not depend.
        Raises:
            CallError: there are nondiff_argnums: use defjvp.
        Example:
            >>> @torchlayers.custom_jvp
            ... def product(x, y):
            ...     return x * y
            >>> product.defjvps(lambda t, out, x, y: t * y, lambda t, out, x, y: x * t)
            >>> torchlayers.grad(product, (0, 1))(torch.tensor(2.0), torch.tensor(3.0))
            (tensor(3.), tensor(2.))
        """
        if self.nondiff_argnums != ():
            raise CallError(
                "torchlayers: custom_jvp: defjvps does not work with nondiff_argnums. Use defjvp."
            )

        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            if len(jvps) != len(primals):
                raise FunctionError(
                    f"torchlayers: custom_jvp: defjvps of {self._name} has {len(jvps)} rules for "
                    f"{len(primals)} arguments. Give one for each, or None."
                )
            output: Any = self(*primals)  # type: ignore[call-arg]
            total = pytree.map_tensors(torch.zeros_like, output)
            for rule_of_argument, tangent in zip(jvps, tangents, strict=True):
                if rule_of_argument is not None:
                    spec = pytree.flatten(output)[1]
                    more = pytree.leaves(rule_of_argument(tangent, output, *primals))
                    both = zip(pytree.leaves(total), more, strict=True)
                    total = pytree.unflatten([a + b for a, b in both], spec)
            return output, total

        self._rule = rule

    def _call(self, args: tuple[Any, ...]) -> Any:
        if self._rule is None:
            raise MissingDerivativeError(
                f"torchlayers: custom_jvp: {self._name} has no rule. Define one with "
                f"@{self._name}.defjvp."
            )
        arguments = self._arguments(args)
        tensors = arguments.take_tensors()
        if any(_is_transposed(level, x) for level in _thread.levels for x in tensors):
            return self.fun(*args)
        call = _JvpCall(self, arguments)
        results = _apply(call, *tensors)
        return call.output.put_in(results)


# NOTE [A rule that calls its function]
# The rule of a bilinear function may compute the tangent by the function itself. Reverse mode
# transposes the rule: by its own rule, a call on tangents would be transposed without end. So calls
# on what is transposed run the function as it is written, as in JAX.
class _Thread(threading.local):
    def __init__(self) -> None:
        self.levels: list[int] = []  # at which rules are being transposed


_thread = _Thread()


def _is_transposed(level: int, x: Tensor) -> bool:
    """Whether x depends on the tangents of the rule that is transposed at this level.

    Its primals may be tracked too, for a further derivative, but at levels below.
    """
    value = _C.held_at(x, level)[0]
    return bool(value.requires_grad) and functorch.maybe_get_level(value) == level


class _JvpCall:
    output: OutputStructure

    def __init__(self, custom: custom_jvp[..., Any], arguments: DifferentiatedArguments) -> None:
        assert custom._rule is not None
        self._custom = custom
        self._rule = deferred(custom._rule, *arguments.nondiff)
        self._arguments = arguments

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        self.output = OutputStructure(self._custom.fun(*self._arguments.all(tensors)))
        return self.output.forget()

    def push(self, tensors: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Tensor]:
        """Returns the tangents of all outputs."""
        name, rule = self._custom._name, self._rule
        arguments = self._arguments
        pair = rule(
            *arguments.nondiff,
            arguments.differentiated(tensors),
            arguments.differentiated(tangents),
        )
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise FunctionError(
                f"torchlayers: custom_jvp: the rule of {name} must return (output, "
                f"output_tangent), got {type(pair).__name__}."
            )
        outputs, output_tangents = (pytree.leaves(part) for part in pair)
        if len(output_tangents) != len(outputs):
            raise FunctionError(
                f"torchlayers: custom_jvp: the rule of {name} returned "
                f"{len(output_tangents)} tangents for {len(outputs)} outputs. "
                "Return them in the same structure."
            )
        pairs = [
            (x, t) for x, t in zip(outputs, output_tangents, strict=True) if isinstance(x, Tensor)
        ]
        for x, t in pairs:
            if is_float(x) and not (isinstance(t, Tensor) and t.shape == x.shape):
                got = f"shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
                raise FunctionError(
                    f"torchlayers: custom_jvp: the rule of {name} returned a tangent of {got} for "
                    f"an output of shape {tuple(x.shape)}."
                )
        return [t for _, t in pairs]


class _JvpFunction(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(call: _JvpCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(not_input(x, tensors) for x in call.run(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        save_call(ctx, inputs, output)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        primals = ctx.saved_tensors
        pushed = ctx.call.push(primals, or_zeros(tangents, primals))
        return tuple(
            t if differentiable else None
            for t, differentiable in zip(pushed, ctx.call.output.is_float, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        primals, are_float = ctx.saved_tensors, ctx.call.output.is_float
        zeros = [torch.zeros_like(x) for x in primals]
        places = [i for i, x in enumerate(primals) if is_float(x) and ctx.needs_input_grad[i + 1]]

        def push(*some: Tensor) -> list[Tensor]:
            tangents = [*zeros]
            for i, t in zip(places, some, strict=True):
                tangents[i] = t
            _thread.levels.append(functorch.maybe_current_level())
            try:
                pushed = ctx.call.push(primals, tangents)
            finally:
                _thread.levels.pop()
            return [
                t
                for t, differentiable, g in zip(pushed, are_float, cotangents, strict=True)
                if differentiable and g is not None
            ]

        gradients: dict[int, Any] = {}
        present = [g for g in cotangents if g is not None]
        if places and present:
            _, pull = vjp(push, *(zeros[i] for i in places))
            gradients = dict(zip(places, pull(present), strict=True))
        return None, *(gradients.get(i) for i in range(len(primals)))


_apply: Any = _JvpFunction.apply
