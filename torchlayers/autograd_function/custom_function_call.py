"""custom_function_call: a Function's way through the layers.

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
from torch import _ops
from torch._C import DispatchKey
from torch._C._functorch import TransformType
from torch._functorch.autograd_function import custom_function_call as torch_funcs
from torch._functorch.pyfunctorch import dispatch_functorch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from torchlayers import _C
from torchlayers.autograd_function import interpreters
from torchlayers.core import pytree
from torchlayers.core.errors import CallError

Function: TypeAlias = type[torch.autograd.Function]
Rule: TypeAlias = Callable[..., Any]

_functorch: Any = torch._C._functorch
FRONT: Any = torch._C._dispatch_key_parse(_C.FRONT_KEY)

# The one that Function.apply ends in: it asks no questions about transforms.
_PLAIN_APPLY: Any = vars(torch._C._FunctionBase)["apply"]


class CustomFunctionHigherOrderOperator(_ops.HigherOrderOperator):
    """Calls an autograd.Function with the layer on top of the stack, by that layer's rule.

    Called with a Function and its operands, as the Function's apply is; the result is what its
    forward returns. A rule is registered by ``py_impl``, as on every higher-order operator:

    - for a ``TransformType`` it is called, where a layer of that kind is on top, with what
      torch.func calls its rules with: ``(interpreter, Function, *operands)``. It takes the place
      of ours, which ``functorch_table`` has: fetch that first, to leave other Functions to it.
    - for a dispatch key, with ``(Function, *operands)``, and for a class of modes, with the mode
      before these, it is called below the last layer, where the key is on or the mode active.

    Raises:
        CallError: the operands are not what the Function's forward takes.
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
        # A key without a rule is fallen through; py_impl adds those with one.
        self.non_fallthrough_keys = torch._C.DispatchKeySet(DispatchKey.Undefined)
        self._has_rules_below = False

    def py_impl(self, k: Any) -> Callable[[Rule], Rule]:
        register = super().py_impl(k)

        def taking_its_place(rule: Rule) -> Rule:
            if not _is_ours(rule) and _is_ours(self.functorch_table.get(k)):
                del self.functorch_table[k]
            register(rule)
            if not isinstance(k, TransformType):
                for key in _runtime_keys(k):
                    self.non_fallthrough_keys = self.non_fallthrough_keys.add(key)
                self._has_rules_below = self._has_rules_below or k != FRONT
            return rule

        return taking_its_place

    def __call__(self, function: Function, /, *operands: Any, **options: Any) -> Any:
        bound = _bound(function, operands, options)
        alive = pytree.map_all_tensors(_functorch.unwrap_if_dead, bound)
        return super().__call__(function, *alive)  # type: ignore[no-untyped-call]

    def dispatch(self, key: Any, /, function: Function, *operands: Any) -> Any:
        if key == DispatchKey.Undefined or not self._has_rule_for(key, operands):
            return self.on_top(function, *operands)
        return super().dispatch(key, function, *operands)  # type: ignore[no-untyped-call]

    def on_top(self, function: Function, /, *operands: Any) -> Any:
        """The Function on the layer on top now. operands are all that its forward takes.

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
            interpreter = interpreters.OF_KIND[kind](level)
            return self.functorch_table[interpreter.transform](interpreter, function, *operands)
        if torch._C._are_functorch_transforms_active():
            transform = _functorch.peek_interpreter_stack().key()
            is_ours = _is_ours(self.functorch_table.get(transform))
            operator = torch_funcs if is_ours else self
            return dispatch_functorch(operator, (function, *operands), {})
        if self._has_rules_below:
            return self._below_the_layers(function, operands)
        return _PLAIN_APPLY(function, *operands)

    def _below_the_layers(self, function: Function, operands: tuple[Any, ...]) -> Any:
        with_rules = self.non_fallthrough_keys.remove(FRONT)
        keys = _ops._compute_keyset(operands, {}, with_rules)  # type: ignore[no-untyped-call]
        key = keys.highestPriorityTypeId()
        if not self._has_rule_for(key, operands):
            key = keys.remove(key).highestPriorityTypeId()
        if key == DispatchKey.Undefined:
            return _PLAIN_APPLY(function, *operands)
        return super().dispatch(key, function, *operands)  # type: ignore[no-untyped-call]

    def _has_rule_for(self, key: Any, operands: tuple[Any, ...]) -> bool:
        """Only of the key of modes and subclasses does one have to ask: which of them it is."""
        if key != DispatchKey.Python:
            return True
        mode = _get_current_dispatch_mode()
        if mode is not None:
            return type(mode) in self.python_key_table
        return any(type(leaf) in self.python_key_table for leaf in pytree.leaves(operands))


def _bound(function: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """All operands by position, as Function.apply binds them."""
    if function.setup_context is torch.autograd.Function.setup_context:  # old-style: as they are
        if options:
            raise CallError(
                f"torchlayers: {function.__name__}.forward takes ctx, so it gets its operands by "
                f"position. Pass {', '.join(options)} so."
            )
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


def check_by_position(function: Any, options: dict[str, Any]) -> None:
    """Raises CallError where there are operands that torch could not hand over."""
    if options:
        raise CallError(
            f"torchlayers: {function.__name__}.forward takes {', '.join(options)} by keyword "
            "alone, and an autograd.Function gets its operands by position. Take the * out of its "
            "signature."
        )


def _is_ours(rule: Any) -> bool:
    return str(getattr(rule, "__module__", None)).partition(".")[0] == "torchlayers"


def _runtime_keys(k: Any) -> list[Any]:
    """The keys at which a rule for this one, an alias (Autograd) or a class of modes, may run."""
    if inspect.isclass(k):
        return [DispatchKey.Python]
    if not torch._C._dispatch_is_alias_key(k):
        return [k]
    included = torch._C._dispatch_is_included_in_alias
    return [key for key in DispatchKey.__members__.values() if included(key, k)]


custom_function_call = CustomFunctionHigherOrderOperator()
