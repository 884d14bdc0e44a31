"""custom_vjp: a function with two rules for reverse mode."""

from collections.abc import Callable
from typing import Any

from torchlayers.autograd_function.custom_derivatives.declaration import CustomFunction
from torchlayers.autograd_function.custom_derivatives.vjp_call import (
    VjpCall,
    apply,
    may_be_differentiated,
    runs_as_written,
)
from torchlayers.core.annotations import P, R
from torchlayers.core.errors import MissingDerivativeError


class custom_vjp(CustomFunction[P, R]):
    """A function with its own derivative for reverse mode, given as two rules.

    Forward mode raises an error: use :class:`custom_jvp`, which serves both.

    Args:
        fun: takes and returns tensors and pytrees of tensors. Tensors that it captures get no
            gradient: pass them as arguments.
        nondiff_argnums: positions of arguments that are not differentiated, such as functions.
    Raises:
        MissingDerivativeError: there are no rules when the function is called; or forward mode.
        FunctionError: fwd returned something other than a pair, or bwd cotangents that do not match
            the arguments.
        CallError: the arguments do not match the function's signature, or are by keyword only.
        ArgnumsError: nondiff_argnums does not match the arguments.
    Example:
        >>> @torchlayers.custom_vjp
        ... def clipped(x):  # the identity, with a gradient of at most 1
        ...     return x
        >>> clipped.defvjp(lambda x: (x, None), lambda res, g: (g.clamp(-1, 1),))
        >>> torchlayers.grad(lambda x: 5 * clipped(x))(torch.tensor(3.0))
        tensor(1.)

    Source: jax.custom_vjp.
    """

    api = "custom_vjp"
    _fwd: Callable[..., Any] | None = None
    _bwd: Callable[..., Any]

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Sets both rules.

        Args:
            fwd: takes fun's arguments; returns ``(output, residuals)``, residuals any pytree. It is
                called instead of fun where a derivative may be taken, and again for a second
                derivative, which differentiates both rules.
            bwd: ``bwd(*nondiff_args, residuals, cotangents)`` returns a tuple with the cotangent of
                each differentiated argument; None stands for zero. cotangents have the structure of
                the output.
        Example:
            >>> @torchlayers.custom_vjp
            ... def product(x, y):
            ...     return x * y
            >>> def product_fwd(x, y):
            ...     return x * y, (x, y)
            >>> product.defvjp(product_fwd, lambda res, g: (g * res[1], g * res[0]))
            >>> torchlayers.grad(product, (0, 1))(torch.tensor(2.0), torch.tensor(3.0))
            (tensor(3.), tensor(2.))
        """
        self._fwd, self._bwd = fwd, bwd

    def _call(self, args: tuple[Any, ...]) -> Any:
        if self._fwd is None:
            raise MissingDerivativeError(
                f"torchlayers: custom_vjp: {self._name} has no rules. Define them with "
                f"{self._name}.defvjp(fwd, bwd)."
            )
        arguments = self._arguments(args)
        tensors = arguments.take_tensors()
        if not may_be_differentiated(tensors) or runs_as_written(self._fwd):
            return self.fun(*args)
        call = VjpCall(self._name, self._fwd, self._bwd, arguments)
        results = apply(call, *tensors)
        return call.output.put_in(results[: len(call.output.is_float)])
