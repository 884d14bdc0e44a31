"""custom_function_call: dispatches a Function through the layers.

Cube.apply(x)                        torch's
  └─ torch's custom_function_call    any transform active
       └─ front_key.py                   on our front key
            └─ ours
                 └─ the rule of the layer on top
                      └─ ours again, on the layer below
                           └─ …  no layer left: plain Cube.apply
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import DispatchKey

from torchlayers import _C
from torchlayers.autograd_function import interpreters
from torchlayers.core import pytree
from torchlayers.core.errors import CallError
from torchlayers.core.operators import higher_order
from torchlayers.core.private_names import private
from torchlayers.core.torch_private import (
    HigherOrderOperator,
    dispatch_key,
    dispatch_modes,
    functorch,
    torch_c,
    without_ended_wrapper,
)

Function: TypeAlias = type[torch.autograd.Function]
Rule: TypeAlias = Callable[..., Any]

torch_ops = private("torch._ops")
FRONT: Any = dispatch_key(_C.FRONT_KEY)
_OF_TORCH_FUNC: Any = DispatchKey.FuncTorchDynamicLayerFrontMode

# The apply that Function.apply calls last: it does not check for transforms.
_PLAIN_APPLY: Any = next(
    vars(base)["apply"]
    for base in reversed(torch.autograd.Function.__mro__)
    if "apply" in vars(base)
)


class CustomFunctionHigherOrderOperator(HigherOrderOperator):
    """Applies an autograd.Function by the rule of the layer on top of the stack.

    Takes a Function and its operands, as the Function's apply does, and returns what its forward
    returns. Rules are registered with ``py_impl``, as for every higher-order operator:

    - A rule for a ``TransformType`` is called when a layer of that kind is on top, with the
      arguments of a torch.func rule: ``(interpreter, Function, *operands)``. It replaces the
      default rule in ``functorch_table``: fetch that first, to use it for other Functions.
    - A rule for a dispatch key or a mode class is called below the last layer, when the key is
      included or the mode active: with ``(Function, *operands)``, or ``(mode, Function,
      *operands)``.

    Raises:
        CallError: the operands do not match the signature of the Function's forward.
    Example:
        >>> class Scale(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x, by=3.0):
        ...         return x * by
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         ctx.by = inputs[1]
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return g * ctx.by, None
        >>> torchlayers.grad(lambda x: custom_function_call(Scale, x, by=4.0))(torch.tensor(2.0))
        tensor(4.)

    Source: the higher-order operator of the same name in torch.func.
    """

    def __init__(self) -> None:
        super().__init__("torchlayers_custom_function_call")  # type: ignore[no-untyped-call]
        # Keys without a rule fall through; py_impl adds those with one.
        self.non_fallthrough_keys = torch.DispatchKeySet(DispatchKey.Undefined)
        self._has_rules_below = False

    def py_impl(self, k: Any) -> Callable[[Rule], Rule]:
        register = super().py_impl(k)

        def taking_its_place(rule: Rule) -> Rule:
            if not _is_ours(rule) and _is_ours(self.functorch_table.get(k)):
                del self.functorch_table[k]
            register(rule)
            if not isinstance(k, functorch.TransformType):
                for key in _runtime_keys(k):
                    self.non_fallthrough_keys = self.non_fallthrough_keys.add(key)
                self._has_rules_below = self._has_rules_below or k != FRONT
            return rule

        return taking_its_place

    def __call__(self, function: Function, /, *operands: Any, **options: Any) -> Any:
        bound = _bind_operands(function, operands, options)
        alive = pytree.map_all_tensors(without_ended_wrapper, bound)
        return super().__call__(function, *alive)  # type: ignore[no-untyped-call]

    def dispatch(self, key: Any, /, function: Function, *operands: Any) -> Any:
        if key == DispatchKey.Undefined or not self._has_rule_for(key, operands):
            return self.on_top(function, *operands)
        return super().dispatch(key, function, *operands)  # type: ignore[no-untyped-call]

    def on_top(self, function: Function, /, *operands: Any) -> Any:
        """Applies the Function on the current top layer. operands are all arguments of its forward.

        Example:
            >>> class Double(torch.autograd.Function):
            ...     @staticmethod
            ...     def forward(x):
            ...         return 2 * x
            ...     @staticmethod
            ...     def setup_context(ctx, inputs, output):
            ...         pass
            >>> custom_function_call.on_top(Double, torch.tensor(2.0))
            tensor(4.)
        """
        top = _C.top()
        if top is not None:
            kind, level = top
            if kind not in interpreters.INTERPRETERS:
                return _C.python_layer_on_top()._process_function(function, operands)
            interpreter = interpreters.INTERPRETERS[kind](level)
            return self.functorch_table[interpreter.transform](interpreter, function, *operands)
        if functorch.maybe_current_level() is not None:
            transform = functorch.get_interpreter_stack()[-1].key()
            is_ours = _is_ours(self.functorch_table.get(transform))
            operator = higher_order.custom_function_call if is_ours else self
            dispatch: Any = HigherOrderOperator.dispatch
            return dispatch(operator, _OF_TORCH_FUNC, function, *operands)
        if self._has_rules_below:
            return self._run_below_layers(function, operands)
        return _PLAIN_APPLY(function, *operands)

    def _run_below_layers(self, function: Function, operands: tuple[Any, ...]) -> Any:
        with_rules = self.non_fallthrough_keys.remove(FRONT)
        keys = torch_ops._compute_keyset(operands, {}, with_rules)
        key = keys.highestPriorityTypeId()
        if not self._has_rule_for(key, operands):
            key = keys.remove(key).highestPriorityTypeId()
        if key == DispatchKey.Undefined:
            return _PLAIN_APPLY(function, *operands)
        return super().dispatch(key, function, *operands)  # type: ignore[no-untyped-call]

    def _has_rule_for(self, key: Any, operands: tuple[Any, ...]) -> bool:
        """Whether the key has a rule. The Python key has one only for some modes and subclasses."""
        if key != DispatchKey.Python:
            return True
        modes = dispatch_modes._get_current_dispatch_mode_stack()
        if modes:
            return type(modes[-1]) in self.python_key_table
        return any(type(leaf) in self.python_key_table for leaf in pytree.leaves(operands))


def _bind_operands(
    function: Any, operands: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, ...]:
    """Returns all operands as positional ones, bound as Function.apply binds them."""
    if function.setup_context is torch.autograd.Function.setup_context:  # old-style: not bound
        check_old_style(function, options)
        return operands
    try:
        arguments = inspect.signature(function.forward).bind(*operands, **options)
    except TypeError as error:
        raise CallError(
            f"torchlayers: {function.__name__}.forward does not take these operands: {error}."
        ) from error
    arguments.apply_defaults()
    check_by_position(function, arguments.kwargs)
    return arguments.args


def check_old_style(function: Any, options: dict[str, Any]) -> None:
    """Raises CallError if an old-style Function gets operands by keyword."""
    if options:
        raise CallError(
            f"torchlayers: {function.__name__}.forward takes ctx, so its operands must be "
            f"positional. Pass {', '.join(options)} by position."
        )


def check_by_position(function: Any, options: dict[str, Any]) -> None:
    """Raises CallError if there are keyword-only operands, which torch can't pass to forward."""
    if options:
        raise CallError(
            f"torchlayers: {function.__name__}.forward takes {', '.join(options)} as keyword-only "
            "arguments, but the operands of an autograd.Function are positional. Remove the * from "
            "its signature."
        )


def _is_ours(rule: Any) -> bool:
    return str(getattr(rule, "__module__", None)).partition(".")[0] == "torchlayers"


def _runtime_keys(k: Any) -> list[Any]:
    """Returns the runtime keys of a rule's key: an alias key (Autograd) has several, a mode class
    the Python key."""
    if inspect.isclass(k):
        return [DispatchKey.Python]
    if k in (FRONT, DispatchKey.Undefined):
        return [k]
    included = torch_c._dispatch_is_included_in_alias
    return [key for key in DispatchKey.__members__.values() if included(key, k)]


custom_function_call = CustomFunctionHigherOrderOperator()
