"""Layer: the base class of layers written in Python.

A layer of C++ (csrc/layers/custom.h) takes part in the stack, and calls the methods of this class:

    operator on a tensor of the layer
      └─ CustomLayer.process, below the layer
           └─ Layer.process(op, args, kwargs)
                ├─ the rule for op, on LayerTensors: ordinary operators on their values and parts
                └─ NotImplemented: the operator's decomposition runs, above the layer
"""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import location
from torchlayers.core.errors.user_lines import caller_of
from torchlayers.core.layer_stack import transformed
from torchlayers.core.torch_private import OpOverload
from torchlayers.transforms.functionalize import functional, unwrapped
from torchlayers.transforms.layers.entered_layer import EnteredLayer
from torchlayers.transforms.layers.layer_checks import check_name
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.memory_layout import DEPEND_ON_LAYOUT, laid_out
from torchlayers.transforms.layers.operator_fallbacks import (
    process_function,
    process_undecomposed,
)
from torchlayers.transforms.layers.rule_call import call_rule, map_argument
from torchlayers.transforms.layers.rule_table import RuleTable, reads_no_parts
from torchlayers.transforms.layers.transformed_call import transformed_call
from torchlayers.transforms.layers.write_history import with_history

R = TypeVar("R", bound=Callable[..., Any])


class Layer(EnteredLayer):
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

    - An autograd.Function has the rule registered for its class, or else its forward is run;
      without a tensor of the layer among its operands it goes to the layers below as a whole. The
      same holds for an operator made by ``torch.library.custom_op``.
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

    _rules: ClassVar[RuleTable]
    # The rule that returned a plain tensor last, and its operator, for errors.
    _last_plain: tuple[Any, Any] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        check_name(cls.name)
        cls._rules = RuleTable(cls.__name__, getattr(cls, "_rules", None))

    @classmethod
    def rule(cls, *ops: Any) -> Callable[[R], R]:
        """Decorator that registers the rule of operators for this class of layers.

        Args:
            ops: an operator (``torch.ops.aten.mul.Tensor``), all overloads of one
                (``torch.ops.aten.mul``), the result of ``torch.library.custom_op``, an
                autograd.Function, or a tag: "pointwise", "reduction", "view", "structural" (views,
                and whatever else only moves elements: cat, index, the functional forms of writes),
                "scatter" (the transposes of such operators), "elementwise", "linear" (in some
                arguments), "piecewise linear" (clamp, max, and all that is linear in all tensors
                together), "contraction", "scan", "mixing", "selection", "matrix function",
                "window", "transposed window", "riccati" (docs/layers.md), "constant" (no result
                has a derivative, or only zeros), "random" or "any". The most specific rule is used:
                overload, packet, then tags in the order of registration; of each, own ones before
                the base class's.
        Returns:
            A decorator of ``rule(layer, op, *args, **kwargs)``, called below the layer with the
            arguments of op; keyword-only ones are left out where they have their default. Each
            tensor among them is a :class:`LayerTensor`; those from outside the layer have passed
            through :meth:`lift`. The rule returns op's results: tensors of the layer
            (``layer.tensor``), or plain ones for constants. It may return NotImplemented: the
            operator is then decomposed.
        Raises:
            RuleError: ops has something else, or an operator that writes to its arguments, or a
                composite one that may return a view, whose parts the layer sees instead.
        Example:
            >>> class Magnitude(torchlayers.Layer):
            ...     "A bound on |x|."
            >>> @Magnitude.rule(torch.ops.aten.mul.Tensor)
            ... def mul(layer, op, x, y):
            ...     bounds = [z.value.abs() if z.parts is None else z.parts for z in (x, y)]
            ...     return layer.tensor(x.value * y.value, bounds[0] * bounds[1])
            >>> with Magnitude() as layer:
            ...     x = layer.tensor(torch.tensor(2.0), parts=torch.tensor(3.0))
            ...     y = layer.apply(lambda x: x * x * torch.tensor(-0.5), x)
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
        Example:
            >>> class Named(torchlayers.Layer):
            ...     "parts is a name."
            >>> with Named() as layer:
            ...     x = layer.tensor(torch.ones(2), parts="x")
            >>> x.parts, x.value
            ('x', tensor([1., 1.]))
        """
        return (self._half or self._active()).tensor(value, parts)  # type: ignore[no-any-return]

    def lift(self, value: Tensor) -> LayerTensor:
        """Makes a tensor from outside the layer one of the layer: by default without parts.

        Called for the tensors from outside that an operator with a rule has among its arguments.
        Override it if constants have parts.

        Example:
            >>> class Bounds(torchlayers.Layer):
            ...     def lift(self, value):
            ...         return self.tensor(value, (value, value))
            >>> with Bounds() as layer:
            ...     layer.lift(torch.tensor(2.0)).parts
            (tensor(2.), tensor(2.))
        """
        return self.tensor(value)

    def lifted(self, tensor: Tensor) -> LayerTensor:
        """Returns a tensor of this layer as it is, any other one lifted.

        Example:
            >>> class Named(torchlayers.Layer):
            ...     "parts is a name."
            >>> with Named() as layer:
            ...     x = layer.tensor(torch.ones(2), parts="x")
            ...     layer.lifted(x) is x, layer.lifted(torch.ones(2)).parts
            (True, None)
        """
        if isinstance(tensor, LayerTensor) and tensor.layer is self:
            return tensor
        return self.lift(self._plain_or_owned(tensor))

    def process(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Does the layer's work on an operator, below the layer.

        Called for every operator that has a tensor of this layer among its arguments; if a subclass
        overrides it, for every operator.

        Args:
            op: an OpOverload, or the class of an autograd.Function.
            args: its positional arguments. Tensors of this layer are LayerTensors.
            kwargs: its keyword-only arguments.
        Returns:
            The results, or NotImplemented to decompose the operator, or to run the Function's
            forward inside the layer. By default, the rule's; if no tensor of the layer is involved,
            those of ``send_down``.
        Example:
            >>> class Trace(torchlayers.Layer):
            ...     def process(self, op, args, kwargs):
            ...         print(op)
            ...         return super().process(op, args, kwargs)
            >>> x, w = torch.ones(1, 2), torch.ones(3, 2)
            >>> with Trace():
            ...     _ = torch.nn.functional.linear(x, w)
            aten.t.default
            aten.mm.default
        """
        if not (self._owns_any(args) or (kwargs and self._owns_any(kwargs.values()))):
            return self.send_down(op, args, kwargs)
        rule = self._rules.find(op)
        if rule is not None:
            return call_rule(self, rule, op, args, kwargs)
        if reads_no_parts(op):
            return self.send_down(op, args, kwargs)
        return NotImplemented

    def send_down(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        read: Callable[[LayerTensor], Any] | None = None,
    ) -> Any:
        """Calls the operator on the layers below, without the tensors of this layer.

        Args:
            op: an OpOverload, or the class of an autograd.Function.
            args: its arguments, as process and rules have them.
            kwargs: its keyword-only arguments.
            read: what to pass instead of a tensor of this layer; by default its value. A part of
                the tensor's shape may have another memory layout.
        Returns:
            The results, which are plain tensors to this layer.
        Raises:
            RuleError: the operator is as_strided, and what `read` returns has another shape than
                the tensor, or the view shows memory that is not the tensor's own.
        Example:
            >>> class Double(torchlayers.Layer):
            ...     "parts are twice the value."
            >>> @Double.rule("linear")
            ... def linear(layer, op, *args, **kwargs):
            ...     parts = layer.send_down(op, args, kwargs, read=lambda x: x.parts)
            ...     return layer.tensor(layer.send_down(op, args, kwargs), parts)
            >>> with Double() as layer:
            ...     x = layer.tensor(torch.ones(2), parts=2 * torch.ones(2))
            ...     print(layer.apply(torch.flip, x, (0,)).parts)
            tensor([2., 2.])
        """
        if read is None and self._half is not None and isinstance(args, tuple):
            result = self._half.send_down(op, args, kwargs)  # if the call is the processed one
            if result is not NotImplemented:
                return result
        chosen = self._value if read is None else lambda x: read(x) if self._owns(x) else x
        call = op if isinstance(op, OpOverload) else op.apply
        if read is not None and op in DEPEND_ON_LAYOUT and self._owns(args[0]):
            args = (laid_out(op, args[0].value, read(args[0]), args[1:]), *args[1:])
        args = tuple(map_argument(chosen, arg) for arg in args)
        return call(*args, **{name: map_argument(chosen, arg) for name, arg in kwargs.items()})

    def location(self) -> str:
        """The user's line that called the operator being processed, for errors and reports.

        Returns:
            `` In file.py:7, `source line`.``, with a space in front, or "" if no line is known.
        Example:
            >>> class Lines(torchlayers.Layer):
            ...     def process(self, op, args, kwargs):
            ...         print(op, self.location())
            ...         return super().process(op, args, kwargs)
            >>> with Lines():  # doctest: +ELLIPSIS
            ...     _ = torch.ones(2)
            aten.ones.default  In ...
        """
        rule = _C.running_rule()
        return location(caller_of(type(self).process, *([] if rule is None else [rule])))

    def inputs(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the transformed function is called with, made of what its caller passed.

        Called inside the layer. By default, the same.

        Example:
            >>> class Named(torchlayers.Layer):
            ...     def inputs(self, **tensors):
            ...         return [self.tensor(x, name) for name, x in tensors.items()], {}
            ...     def outputs(self, result):
            ...         return result.parts
            >>> Named()(lambda a, b: b)(x=torch.ones(2), y=torch.zeros(2))
            'y'
        """
        return args, kwargs

    def outputs(self, result: Any) -> Any:
        """What the caller gets, made of what the function returned.

        Called when the layer has been left; its tensors' ``value`` and ``parts`` can still be read.
        By default, the values.

        Example:
            >>> class Shapes(torchlayers.Layer):
            ...     def outputs(self, result):
            ...         return tuple(result.shape)
            >>> Shapes()(torch.ones)(2, 3)
            (2, 3)
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
        Example:
            >>> class Named(torchlayers.Layer):
            ...     "parts is a name."
            >>> @Named.rule("pointwise")
            ... def pointwise(layer, op, *args):
            ...     names = [x.parts for x in args if isinstance(x, torchlayers.LayerTensor)]
            ...     return layer.tensor(layer.send_down(op, args, {}), f"{op}({', '.join(names)})")
            >>> with Named() as layer:
            ...     x, y = layer.tensor(torch.ones(2), "x"), layer.tensor(torch.ones(2), "y")
            ...     layer.apply(lambda x, y: torch.sin(x) * y, x, y).parts
            'aten.mul.Tensor(aten.sin.default(x), y)'
        """
        self._active()
        with _C.functionalize_entry(True) as level:

            def wrapped(tensor: Tensor) -> Tensor:
                return functional(tensor, level) if self._owns(tensor) else tensor

            args = tuple([pytree.map_tensors(wrapped, arg) for arg in args])
            kwargs = pytree.map_tensors(wrapped, kwargs) if kwargs else kwargs
            with tracing_state.run_eagerly():
                result = func(*args, **kwargs)
            return pytree.map_tensors(
                lambda leaf: self._plain_or_owned(unwrapped(leaf, level)), result
            )

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Transforms a function: each call enters a copy of this layer."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return transformed_call(self, func, args, kwargs)

        return transformed(func, wrapper)

    def has_rule(self, op: Any) -> bool:
        """Whether there is a rule for an OpOverload or the class of an autograd.Function.

        Example:
            >>> class Empty(torchlayers.Layer):
            ...     "It has no rules."
            >>> Empty().has_rule(torch.ops.aten.mul.Tensor)
            False
        """
        return self._rules.find(op) is not None

    def _has_function_rule(self, function: Any) -> bool:
        """Whether an autograd.Function is processed as a whole. Those of captured control flow have
        a rule for all layers."""
        return hasattr(function, "in_python_layer") or self.has_rule(function)

    def _new_half(self) -> _C.PythonLayer:
        cls = type(self)
        sees_all = cls.process is not Layer.process
        lifts_plainly = cls.tensor is Layer.tensor and cls.lift is Layer.lift
        return _C.PythonLayer(self, self.name, sees_all, lifts_plainly)

    def _process_function(self, function: Any, operands: tuple[Any, ...]) -> Any:
        """Applies an autograd.Function inside the layer, which is on top of the stack."""
        return process_function(self, function, operands)

    def _process_undecomposed(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator without a rule above the layer, or raises RuleError."""
        return process_undecomposed(self, op, args, kwargs)

    def _rewritten(self, before: Tensor, after: Tensor, is_detached: bool) -> Tensor:
        """Adds to `after` the history of what was there before the write, below the layer."""
        return with_history(self, before, after, is_detached)
