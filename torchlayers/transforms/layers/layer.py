"""Layer: the base class of layers written in Python.

A layer of C++ (csrc/layers/custom.h) takes part in the stack, and calls the methods of this class:

    operator on a tensor of the layer
      └─ CustomLayer.process, below the layer
           └─ Layer.process(op, args, kwargs)
                ├─ the rule for op, on LayerTensors: ordinary operators on their values and parts
                └─ NotImplemented: the operator's decomposition runs, above the layer
"""

import copy
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import operator_schema, pytree, tracing_state
from torchlayers.core.errors import RuleError, TransformError, location
from torchlayers.core.layer_stack import transformed
from torchlayers.transforms import decompositions
from torchlayers.transforms.functionalize import functional, unwrapped
from torchlayers.transforms.layers.layer_tensor import LayerTensor, layer_tensor
from torchlayers.transforms.layers.rule_table import RuleTable, facts

R = TypeVar("R", bound=Callable[..., Any])

_aten: Any = torch.ops.aten
# Their results depend on the shape, dtype and device of their argument alone.
_FACTORIES = {
    _aten.empty_like,
    _aten.full_like,
    _aten.new_empty,
    _aten.new_empty_strided,
    _aten.new_full,
    _aten.new_ones,
    _aten.new_zeros,
    _aten.ones_like,
    _aten.zeros_like,
}
_BUILT_IN = ("grad", "jvp", "vmap", "functionalize", "seeded", "drawn outside")


class Layer:
    """Base class of a transform of one's own: a layer of the stack, with rules in Python.

    Inside the layer, tensors can be :class:`LayerTensor`s, which carry what the layer wants beside
    their value: bounds, Taylor coefficients, units. A rule says what an operator does to them. It
    runs below the layer, and computes with ordinary operators, so the layer composes with grad,
    jvp, vmap, other layers and itself, and compiles.

    A subclass has rules (:meth:`rule`) and, if it is a transform, :meth:`inputs` and
    :meth:`outputs`; ``Interval()(f)(lower, upper)`` then enters a layer, runs f on what inputs
    returns, leaves the layer, and returns what outputs makes of f's result. Alternatively, ``with
    Interval() as layer:`` enters the layer for a block, in which ``layer.tensor`` makes its tensors
    and ``layer.apply(f, *args)`` runs functions on them.

    In the transform and in ``apply``, mutations are replaced by operators without side effects
    first, so rules never see a write; what f writes to its arguments stays inside. An operator
    without a rule is decomposed until there is one; RuleError names it if that ends without one.
    Further:

    - An autograd.Function has the rule registered for its class, or else its forward is run; without
      a tensor of the layer among its operands it goes to the layers below as a whole.
    - ``item()``, ``if x > 0`` and control flow read the value.
    - Random operators without a rule or decomposition draw constants, whose parts are as ``lift``
      says.
    - To see every operator, also those without a tensor of the layer, override :meth:`process`.

    Attributes:
        name: as current_stack() and errors say it; by default the class's name in lower case.
        level: the position on the stack, 1 for the outermost; raises TransformError outside.
    Raises:
        TransformError: the layer is entered again while it is active, or a subclass is named like a
            transform of torchlayers.
        RuleError: an operator has neither a rule nor a decomposition.
    Example:
        >>> class Count(torchlayers.Layer):  # counts products
        ...     def __init__(self):
        ...         self.products = 0
        ...     def process(self, op, args, kwargs):
        ...         self.products += op is torch.ops.aten.mul.Tensor
        ...         return super().process(op, args, kwargs)
        >>> with Count() as count:
        ...     _ = torchlayers.vmap(lambda x: x * x * x)(torch.ones(3))
        >>> count.products
        2

    Source: JAX's Trace and Tracer (docs/autodidax), torch's TorchDispatchMode.
    """

    name: ClassVar[str]
    _rules: ClassVar[RuleTable]
    _entry: Any = None
    _level = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        if cls.name in _BUILT_IN:
            raise TransformError(
                f"torchlayers: a Layer can't be named {cls.name!r}, as a transform of torchlayers "
                "is. Set the class attribute `name`."
            )
        cls._rules = RuleTable(cls.__name__, getattr(cls, "_rules", None))

    @classmethod
    def rule(cls, *ops: Any) -> Callable[[R], R]:
        """Decorator that registers the rule of operators for this class of layers.

        Args:
            ops: an operator (``torch.ops.aten.mul.Tensor``), all overloads of one
                (``torch.ops.aten.mul``), the result of ``torch.library.custom_op``, an
                autograd.Function, or a tag: "pointwise", "reduction", "view", "linear" (in some
                argument), "constant" (no result has a derivative), "random" or "any" (all but
                composite operators, which are decomposed). The most specific rule is used:
                overload, packet, then tags in the order in which they were registered; then those
                of the base class.
        Returns:
            A decorator of ``rule(layer, op, *args, **kwargs)``, called below the layer with the
            arguments of op. Each tensor among them is a :class:`LayerTensor`; those from outside
            the layer have passed through :meth:`lift`. The rule returns op's results: tensors of
            the layer (``layer.tensor``), or plain ones for constants. It may return NotImplemented:
            the operator is then decomposed.
        Raises:
            RuleError: ops has something else, or an operator that writes to its arguments.
        Example:
            >>> class Magnitude(torchlayers.Layer):
            ...     "A bound on |x|."
            >>> @Magnitude.rule(torch.ops.aten.mul.Tensor)
            ... def mul(layer, op, x, y):
            ...     bounds = [z.value.abs() if z.parts is None else z.parts for z in (x, y)]
            ...     return layer.tensor(x.value * y.value, bounds[0] * bounds[1])
            >>> with Magnitude() as layer:
            ...     x = layer.tensor(torch.tensor(2.0), parts=torch.tensor(3.0))
            ...     y = layer.apply(lambda x: x * x * -0.5, x)
            >>> y.parts
            tensor(4.5000)
        """

        def register(rule: R) -> R:
            cls._rules.add(ops, rule)
            return rule

        return register

    def tensor(self, value: Tensor, parts: Any = None) -> LayerTensor:
        """A tensor of this layer, which has to be active or processing an operator.

        Args:
            value: the tensor that it stands for, from outside or below the layer. If the layer has
                no use for values, any tensor of the shape, dtype and device will do, such as
                ``torch.empty((), device=device).expand(shape)``.
            parts: whatever the layer's rules want to find with it.
        Raises:
            TransformError: the layer is not active.
        """
        return layer_tensor(_C.wrap_at_layer(self._active(), value), self, parts)

    def lift(self, value: Tensor) -> LayerTensor:
        """Makes a tensor from outside the layer one of the layer: by default without parts."""
        return self.tensor(value)

    def lifted(self, tensor: Tensor) -> LayerTensor:
        """Returns a tensor of this layer as it is, any other one lifted."""
        if isinstance(tensor, LayerTensor) and tensor.layer is self:
            return tensor
        if self._entry is not None and _C.is_of_layer(self._entry, tensor):
            return self.lift(_C.value_in_wrapper(tensor))  # x.data, which has no parts
        return self.lift(tensor)

    def process(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Does the layer's work on an operator, below the layer.

        Called for every operator that has a tensor of this layer among its arguments; if a subclass
        overrides it, for every operator.

        Args:
            op: an OpOverload.
            args: its positional arguments. Tensors of this layer are LayerTensors.
            kwargs: its keyword-only arguments.
        Returns:
            The results, or NotImplemented to decompose the operator. By default, the rule's; if no
            tensor of the layer is involved, those of ``send_down``.
        """
        if not any(self._owns(leaf) for leaf in _tensors((*args, *kwargs.values()))):
            return self.send_down(op, args, kwargs)
        rule = self._rules.find(op)
        if rule is not None:
            args = tuple(_map(self.lifted, arg) for arg in args)
            kwargs = {name: _map(self.lifted, arg) for name, arg in kwargs.items()}
            return rule(self, op, *args, **kwargs)
        if self._reads_no_parts(op):
            return self.send_down(op, args, kwargs)
        return NotImplemented

    def send_down(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the operator on the layers below, with the values of this layer's tensors.

        Returns:
            Its results, which are constants to this layer.
        """
        args = tuple(_map(self._value, arg) for arg in args)
        return op(*args, **{name: _map(self._value, arg) for name, arg in kwargs.items()})

    def inputs(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the transformed function is called with, made of what its caller passed.

        Called inside the layer. By default, the same.
        """
        return args, kwargs

    def outputs(self, result: Any) -> Any:
        """What the caller gets, made of what the function returned.

        Called when the layer has been left; its tensors' ``value`` and ``parts`` can still be read.
        By default, the values.
        """
        return pytree.map_tensors(self._value, result)

    def apply(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs a function inside the layer, which has to be active and on top of the stack.

        Mutations in it are replaced by operators without side effects.

        Args:
            func: takes args and kwargs, which may hold tensors of this layer; returns any pytree.
        Returns:
            Its result. What does not depend on tensors of this layer is not of this layer either.
        Raises:
            TransformError: the layer is not active.
        """
        self._active()
        with _C.functionalize_entry(True) as level:
            args, kwargs = pytree.map_tensors(
                lambda leaf: functional(leaf, level) if self._owns(leaf) else leaf, (args, kwargs)
            )
            with tracing_state.run_eagerly():
                result = func(*args, **kwargs)
            return pytree.map_tensors(lambda leaf: unwrapped(leaf, level, True), result)

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Transforms a function: each call enters a copy of this layer."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            layer = copy.copy(self)
            with layer._new_entry() as layer._level:
                args, kwargs = layer.inputs(*args, **kwargs)
                result = layer.apply(func, *args, **kwargs)
            return layer.outputs(result)

        return transformed(func, wrapper)

    def __enter__(self) -> Self:
        if self._entry is not None and self._level:
            raise TransformError(
                f"torchlayers: {self!r} is active already. Enter another instance, or use the layer "
                "as a transform, which copies it for each call."
            )
        entry = self._new_entry()
        try:
            self._level = entry.__enter__()
        except BaseException as error:  # Ctrl-C, when it has been entered
            if _C.is_entered(entry):
                entry.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._level = 0
        self._entry.__exit__(*error)

    @property
    def level(self) -> int:
        self._active()
        return self._level

    def __repr__(self) -> str:
        return f"{self.name} (level {self._level})" if self._level else f"{type(self).__name__}()"

    def _new_entry(self) -> Any:
        if tracing_state.is_tracing():
            raise TransformError(
                f"torchlayers: torch.compile can't trace the layer {self.name!r}. Compile the "
                "function with torchlayers.compile."
            )
        cls = type(self)
        self._entry = _C.custom_layer_entry(
            self.name,
            cls.process is not Layer.process,
            self.process,
            self._refuse,
            lambda op: cls._rules.find(op) is not None,
        )
        return self._entry

    def _active(self) -> Any:
        if self._entry is None or not _C.is_entered(self._entry):
            raise TransformError(
                f"torchlayers: {self!r} is not active: enter it with `with`, or use it as a "
                "transform, layer(f)(*args)."
            )
        return self._entry

    def _owns(self, tensor: Tensor) -> bool:
        return isinstance(tensor, LayerTensor) and tensor.layer is self

    def _value(self, tensor: Tensor) -> Tensor:
        return _C.value_in_wrapper(tensor) if self._owns(tensor) else tensor

    def _reads_no_parts(self, op: Any) -> bool:
        if facts(op)["reads_number"] or op.overloadpacket in _FACTORIES:
            return True
        name = op._schema.name, op._schema.overload_name
        return operator_schema.is_random(op) and decompositions.find(*name) is None

    def _refuse(self, op: Any) -> None:
        if operator_schema.writes(op):
            raise RuleError(
                f"torchlayers: {self!r} can't process {op}, which writes to a tensor. Inside "
                f"layer.apply(f, *args), and in the transform layer(f), writes are replaced by "
                f"operators that have rules.{location()}"
            )
        raise RuleError(
            f"torchlayers: {self!r} has no rule for {op}, and torch has no decomposition of it. "
            f"Register a rule: @{type(self).__name__}.rule(torch.ops.{op}) on a function of (layer, "
            f"op, {', '.join(argument.name for argument in op._schema.arguments)}).{location()}"
        )


def _map(change: Callable[[Tensor], Tensor], arg: Any) -> Any:
    """Changes an operator's argument, if it is a tensor, or the tensors in a list of them."""
    if isinstance(arg, Tensor):
        return change(arg)
    if isinstance(arg, (list, tuple)):
        return [_map(change, item) for item in arg]
    return arg


def _tensors(args: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for arg in args:
        if isinstance(arg, Tensor):
            found.append(arg)
        elif isinstance(arg, (list, tuple)):
            found += _tensors(arg)
    return found
