"""autograd_function_apply: applies an autograd.Function given as two functions, fwd and bwd."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.autograd_function import methods, old_style
from torchlayers.core.errors import FunctionError
from torchlayers.core.torch_private import HigherOrderOperator

# The class that torch's operator makes at each call.
_TEMPLATE = "AutogradFunctionApply.__call__.<locals>.ApplyTemplate"


class AutogradFunctionApply(HigherOrderOperator):
    """Calls a forward function whose derivative is given by a backward function.

    Args:
        fwd: ``fwd(None, *fwd_args)`` returns ``(output, saved_values)``.
        bwd: ``bwd(None, *output_gradients, *saved_values)`` returns a gradient for each of the
            fwd_args that the mask selects; a single gradient need not be in a tuple.
        fwd_args: tensors and other values; differentiable arguments first, then whatever else
            the functions need.
        args_tensor_mask: a bool for each of the leading fwd_args: whether it has a gradient.
            None selects all tensors.
        non_differentiable_idx: indices of the outputs that have no gradient.
    Returns:
        The output: a tensor or a tuple.
    Raises:
        FunctionError: bwd returned too few gradients, or too many.
    Example:
        >>> x = torch.tensor(2.0, requires_grad=True)
        >>> y = autograd_function_apply(
        ...     lambda ctx, x: (x**3, [x]),
        ...     lambda ctx, g, x: g * 3 * x**2,
        ...     x,
        ...     args_tensor_mask=[True],
        ... )
        >>> torch.autograd.grad(y, x)
        (tensor(12.),)

    Source: the higher-order operator of the same name that represents autograd.Functions in the
        graphs of torch.compile.
    """

    def __init__(self) -> None:
        super().__init__("torchlayers_autograd_function_apply")  # type: ignore[no-untyped-call]

    def __call__(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        /,
        *fwd_args: Any,
        args_tensor_mask: Sequence[bool] | None = None,
        non_differentiable_idx: Sequence[int] = (),
    ) -> Any:
        if args_tensor_mask is None:
            args_tensor_mask = [isinstance(arg, Tensor) for arg in fwd_args]
        return old_style.apply(
            ApplyTemplate,
            (fwd, bwd, tuple(args_tensor_mask), tuple(non_differentiable_idx), *fwd_args),
        )


class ApplyTemplate(torch.autograd.Function):
    """The Function that calls fwd and bwd. Autograd nodes show its name, so it has the name of
    torch's equivalent class."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        ctx: Any,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        mask: tuple[bool, ...],
        non_differentiable: tuple[int, ...],
        *args: Any,
    ) -> Any:
        output, saved = fwd(None, *args)
        is_tensor = [isinstance(value, Tensor) for value in saved]
        ctx.save_for_backward(*(value for value in saved if isinstance(value, Tensor)))
        ctx.saved_others = [None if isinstance(value, Tensor) else value for value in saved]
        ctx.is_tensor, ctx.mask, ctx.count = is_tensor, mask, len(args)
        ctx.fwd, ctx.bwd = fwd, bwd
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.mark_non_differentiable(*(outputs[i] for i in non_differentiable))
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        tensors = iter(ctx.saved_tensors)
        saved = [
            next(tensors) if is_tensor else other
            for is_tensor, other in zip(ctx.is_tensor, ctx.saved_others, strict=True)
        ]
        result = ctx.bwd(None, *grads, *saved)
        gradients = iter(
            methods.check_count(
                f"autograd_function_apply: {_name(ctx.bwd)}",
                tuple(result) if isinstance(result, list) else result,
                sum(ctx.mask),
                f"{_name(ctx.fwd)} that args_tensor_mask chooses",
            )
        )
        chosen = [next(gradients) if has_gradient else None for has_gradient in ctx.mask]
        return (None,) * 4 + (*chosen, *(None,) * (ctx.count - len(ctx.mask)))


def _name(function: Any) -> str:
    """Returns the function's name, or the class name of a graph module, whose repr is its code."""
    return str(getattr(function, "__name__", type(function).__name__))


autograd_function_apply = AutogradFunctionApply()


def torch_template(function: Any) -> Callable[..., Any] | None:
    """Returns our autograd_function_apply in place of the Function that torch's makes, else None.

    torch's Function keeps what it saves in a variable, where each level reads the values of the
    innermost, and disables gradients in its backward: its second derivative is wrong.
    """
    if function.__qualname__ != _TEMPLATE:
        return None
    fwd: Any = inspect.getclosurevars(function.forward).nonlocals.get("fwd")
    bwd: Any = inspect.getclosurevars(function.backward).nonlocals.get("bwd")
    setup = inspect.getclosurevars(function.setup_context).nonlocals
    is_known = fwd is not None and bwd is not None and "non_differentiable_idx" in setup
    if not is_known or setup.get("dirty_idx"):
        raise FunctionError(
            "torchlayers: the autograd_function_apply of this torch, which stands for an "
            "autograd.Function in a compiled function, is not known here, or the Function marks "
            "inputs as dirty. Call the function without torch.compile inside a transform."
        )

    def apply(*operands: Any) -> Any:
        return autograd_function_apply(
            lambda ctx, *args: _as_tuples(torch.fx.Interpreter(fwd).run(*args)),
            lambda ctx, *values: _InCallersGradMode(bwd).run(*values),
            *operands,
            args_tensor_mask=[True] * len(operands),
            non_differentiable_idx=setup["non_differentiable_idx"],
        )

    return apply


class _InCallersGradMode(torch.fx.Interpreter):
    """Runs a captured backward, which Dynamo has put into a no_grad: it may be differentiated."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        calls = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
        ends = {calls[0], calls[-1]} if calls else set()
        is_guarded = all(_name(node.target) == "_set_grad_enabled" for node in ends)
        self._skipped = ends if is_guarded else set()

    def run_node(self, n: torch.fx.Node) -> Any:
        return None if n in self._skipped else super().run_node(n)


def _as_tuples(result: Any) -> Any:
    output, saved = result
    return (tuple(output) if isinstance(output, list) else output), saved
