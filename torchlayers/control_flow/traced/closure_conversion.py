"""Closure conversion: captured tensors of branches and loop bodies become explicit arguments.

A function first runs once, uncaptured, to find its captured tensors. After that it takes them as
arguments, which are substituted wherever it used the originals: directly (SubstituteMode), or
wrapped by a transform that it called on them (_Alias).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import proxy_tensor

from torchlayers import _C
from torchlayers.control_flow.batched.samples import base_tensor, without_function_modes
from torchlayers.control_flow.batched.subset_vmap import writes
from torchlayers.control_flow.traced.layer_state import LayerStates
from torchlayers.control_flow.traced.operator_log import OperatorLog
from torchlayers.control_flow.traced.outer_draws import batched_where_they_differ
from torchlayers.control_flow.traced.symbolic_sizes import free_symbols, size_carriers
from torchlayers.core import pytree
from torchlayers.core.errors import TransformError, location
from torchlayers.core.layer_stack import kinds_of_layers
from torchlayers.core.operator_rules.function_rules import RULES
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import (
    FakeTensor,
    dispatch_modes,
    fake_mode,
    functorch,
    stack_depth,
    torch_c,
)
from torchlayers.fx.aten_replacements import ReplacementMode
from torchlayers.fx.operator_tracer import trace_operators
from torchlayers.random.recorded_draws import pause_recording
from torchlayers.random.rewound_draws import rewind_draws
from torchlayers.remat.ambient_state import (
    TensorViewMode,
    apply_view_mode,
    apply_view_modes,
    innermost_view_mode,
)
from torchlayers.remat.checkpoint import without_saved_tensor_hooks

OnTensors = Callable[[Sequence[Tensor]], Any]


def may_be_reversed(tensors: Sequence[Tensor]) -> bool:
    """Whether results computed from the tensors here may be differentiated in reverse mode."""
    # Autograd outside a vmap or jvp tracks the tensors inside their wrappers.
    if torch.is_grad_enabled() and any(base_tensor(x).requires_grad for x in tensors):
        return True
    return "grad" in kinds_of_layers()


def may_be_differentiated(tensors: Sequence[Tensor]) -> bool:
    """Likewise in reverse or forward mode, or where another loop records or replays draws."""
    kinds = kinds_of_layers()
    return may_be_reversed(tensors) or "jvp" in kinds or "drawn outside" in kinds


def is_inside_torch_func() -> bool:
    """Whether torch.func's own grad or functionalize, which don't support graphs, is active."""
    layers = zip(_C.current_stack(), kinds_of_layers(), strict=True)
    return any(layer is None and kind in ("grad", "functionalize") for layer, kind in layers)


@contextlib.contextmanager
def capture_paused() -> Iterator[None]:
    """Runs operators on fake tensors, without capturing them."""
    mode: Any = fake_mode()
    with (
        dispatch_modes._disable_current_modes(),
        mode,
        ReplacementMode(),  # type: ignore[no-untyped-call]
        torch.no_grad(),
        pause_recording(),
    ):
        yield


class ClosureMode(TensorViewMode):
    """Mode that replaces tensors from outside a function by ``sample`` of them."""

    is_covered = False

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.created: dict[int, Tensor] = {}
        self.note_created(inputs)
        self.beyond = innermost_view_mode()

    def is_replaced(self, x: Tensor) -> bool:
        """Whether an enclosing mode replaces x by another tensor."""
        return isinstance(self.beyond, ClosureMode) and self.beyond.is_replaced(x)

    def as_now(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        return lambda: self

    def note_created(self, values: Any) -> Any:
        """Marks the values as created by the function, and returns them."""
        for leaf in pytree.leaves(values):
            if isinstance(leaf, Tensor):
                self.created[id(leaf)] = leaf
        return values

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_covered:  # by an inner mode, which calls this one
            return func(*args, **kwargs)
        shown = pytree.map_all_tensors(self.sample, args)
        options = pytree.map_all_tensors(self.sample, [*kwargs.values()])
        named = dict(zip(kwargs, options, strict=True))
        if (rule := RULES.get(func)) is not None:
            with self:
                return self.note_created(rule(*shown, **named))
        return self.note_created(func(*shown, **named))


class NotingMode(ClosureMode):
    """Notes captured tensors that matter, in the form they had outside the layers that the function
    entered.
    """

    def __init__(self, inputs: Sequence[Tensor], depth: int) -> None:
        super().__init__(inputs)
        self.captured: dict[int, Tensor] = {}
        self._depth = depth

    def matters(self, x: Tensor) -> bool:
        raise NotImplementedError

    def sample(self, x: Tensor) -> Tensor:
        if id(x) in self.created or id(x) in self.captured:
            return x
        with without_function_modes():
            root = x
            while functorch.maybe_get_level(root) > self._depth and not self.is_replaced(root):
                root = functorch.get_unwrapped(root)
            if id(root) not in self.created and self.matters(apply_view_mode(self.beyond, root)):
                self.captured[id(root)] = root
        return x


class _CaptureMode(NotingMode):
    """Notes the captured tensors that predate the function."""

    def __init__(self, inputs: Sequence[Tensor], depth: int, tracer: Any) -> None:
        super().__init__(inputs, depth)
        self._tracer = tracer
        self._memory_of_inputs = {_memory(x) for x in inputs}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if writes(func) and args and isinstance(args[0], Tensor) and self._is_from_outside(args[0]):
            raise TransformError(
                "torchlayers: compile: a branch or loop body writes "
                f"({func.__name__}) to a tensor from outside it.{location()} Return the new value "
                "instead."
            )
        return super().__torch_function__(func, types, args, kwargs)

    def _is_from_outside(self, x: Tensor) -> bool:
        with without_function_modes():
            return _memory(x) in self._memory_of_inputs or (
                id(x) not in self.created and self._is_older(base_tensor(x))
            )

    def matters(self, x: Tensor) -> bool:
        return self._is_older(base_tensor(x))

    def _is_older(self, x: Tensor) -> bool:
        """Whether x predates the function: what the function creates here is not in the graph."""
        if not isinstance(x, FakeTensor) or self._tracer is None:
            return not isinstance(x, FakeTensor)
        return proxy_tensor.get_proxy_slot(x, self._tracer, None) is not None


def _memory(x: Tensor) -> int | None:
    with without_function_modes():
        return storage_of(base_tensor(x))


class SubstituteMode(ClosureMode):
    """Replaces tensors from outside by id."""

    def __init__(self, inputs: Sequence[Tensor], swapped: dict[int, Tensor]) -> None:
        super().__init__(inputs)
        self._swapped = swapped
        self._standing: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def is_replaced(self, x: Tensor) -> bool:
        return id(x) in self._swapped or super().is_replaced(x)

    def sample(self, x: Tensor) -> Tensor:
        if id(x) in self.created:
            return x
        if id(x) in self._swapped:
            return self._swapped[id(x)]
        with without_function_modes():
            depth = stack_depth()
            if (id(x), depth) in self._standing:
                return self._standing[id(x), depth][1]
            root = inner = x
            while (level := functorch.maybe_get_level(root)) > 0:
                root = functorch.get_unwrapped(root)
                if level > depth:  # a rule of that layer runs below it, on the values inside
                    inner = root
                if id(root) in self._swapped:
                    shown = self._swapped[id(root)]
                    if inner is not root:
                        shown = _alias(inner, shown)
                    self._standing[id(x), depth] = x, shown
                    return shown
        return x


class _Alias(torch.autograd.Function):
    """Substitutes a tensor for one that a layer entered by the function has wrapped.

    The function's own levels use the wrapper, and the levels outside use the substitute.
    """

    @staticmethod
    def forward(wrapped: Tensor, seen: Tensor) -> Tensor:
        return seen.view_as(seen)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, g

    @staticmethod
    def jvp(ctx: Any, of_wrapped: Any, of_seen: Any) -> Any:
        tangent = of_seen if of_wrapped is None else of_wrapped
        return tangent.view_as(tangent)

    @staticmethod
    def in_python_layer(layer: Any, wrapped: Tensor, seen: Tensor) -> Tensor:
        parts = getattr(wrapped, "parts", None)
        tensor: Tensor = layer.tensor(layer._value(seen), parts)
        return tensor

    @staticmethod
    def vmap(info: Any, in_dims: Any, wrapped: Tensor, seen: Tensor) -> Any:
        dim = in_dims[0] if in_dims[1] is None else in_dims[1]
        return _alias(wrapped, seen), dim


_alias: Any = _Alias.apply


def _called(func: OnTensors, inputs: Sequence[Tensor]) -> Any:
    """Calls func; explains the error of a torch.func transform on a captured tensor.

    torch.func wraps its arguments where no mode sees it, so they can't be replaced before.
    """
    try:
        return func(inputs)
    except RuntimeError as error:
        if "wrapped->level() < level" not in str(error):
            raise
        raise TransformError(
            "torchlayers: compile: a branch or loop body calls a transform of torch.func on a "
            "tensor from outside it, under a layer. Pass the tensor as an operand, or call "
            "torchlayers' transform of that name."
        ) from error


class Traced:
    """A function that always does the same: it reads no variables of the user's code."""

    def __init__(self, func: OnTensors) -> None:
        self._func = func

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        return self._func(tensors)


def traced_as(func: OnTensors, derived: OnTensors) -> OnTensors:
    """Marks ``derived``, derived from func, as fixed if func is."""
    return Traced(derived) if isinstance(func, Traced) else derived


def trace_once(func: OnTensors, tensors: Sequence[Tensor]) -> OnTensors:
    """Captures the function as it is now, regardless of later changes to variables that it reads.

    Args:
        func: the function.
        tensors: examples of its inputs: their shapes, dtypes and devices are used.
    """
    if isinstance(func, Traced):
        return func
    shapes = [(x.shape, x.dtype, x.device) for x in tensors]
    sizes = free_symbols([x.shape for x in tensors])
    count = len(tensors)
    with contextlib.ExitStack() as stack:
        while _C.top() is not None:
            stack.enter_context(_C.Below())
        stack.enter_context(capture_paused())
        stack.enter_context(without_saved_tensor_hooks())  # it does not run here
        examples = [torch.empty(shape, dtype=dtype, device=at) for shape, dtype, at in shapes]
        examples += size_carriers(sizes)
        graph = trace_operators(lambda *inputs: func(inputs[:count]), *examples)
    return Traced(lambda inputs: [*graph(*(x.contiguous() for x in inputs), *size_carriers(sizes))])


class ClosureConverted:
    """Functions closure-converted to take one list: the operands, then all captured tensors.

    Args:
        functions: take the operands.
        operands: the tensors that the functions are called with.

    Attributes:
        tensors: the arguments for the lifted functions.
        functions: the lifted functions.
        results: the result of each function, as fake tensors.
        draws: whether one of them draws random numbers.
        draws_by_key: whether an enclosing layer drew for them by a key, and would draw the same
            numbers at the next call.
        writes: whether one of them writes to a tensor from outside by an operator whose name does
            not tell (an error is raised for the others).
        changes_layers: whether a rule of a layer written in Python changed the layer's attributes,
            which have been restored.
        alike: whether all functions called the same operators and captured the same tensors.
    """

    def __init__(self, functions: Sequence[OnTensors], operands: Sequence[Tensor]) -> None:
        mode: Any = proxy_tensor.get_proxy_mode()
        depth = stack_depth()
        captured: dict[int, Tensor] = {}
        self.results: list[Any] = []
        self.draws = self.draws_by_key = self.writes = False
        seen_inside = []
        layers = LayerStates()
        for func in functions:
            # A checkpoint around would count what is saved here, and recompute it in this pass.
            with rewind_draws() as counted, capture_paused(), without_saved_tensor_hooks():
                inputs = [x.view_as(x) for x in operands]  # func may also capture the operands
                noted = _CaptureMode(inputs, depth, mode and mode.tracer)
                with noted, OperatorLog() as called:
                    results = func(inputs)
                pytree.map_tensors(noted.sample, results)
            self.draws = self.draws or called.draws
            self.draws_by_key = self.draws_by_key or counted.have_been
            self.writes = self.writes or called.writes
            self.results.append(results)
            seen_inside.append(([*noted.captured], called.all))
            captured |= noted.captured
        self.changes_layers = layers.restore()
        self.alike = all(seen == seen_inside[0] for seen in seen_inside)
        # Enclosing modes may substitute other tensors.
        self.tensors = [*operands, *apply_view_modes([*captured.values()])]
        if self.draws:
            self.tensors += batched_where_they_differ(operands)

        def lifted(func: OnTensors) -> OnTensors:
            def on_tensors(tensors: Sequence[Tensor]) -> Any:
                args, others = tensors[: len(operands)], tensors[len(operands) :]
                by_id = dict(zip(captured, others, strict=False))
                args = [x.view_as(x) if id(x) in captured else x for x in args]
                swapped = SubstituteMode([*args, *others], by_id)
                with torch_c._EnableTorchFunction(), swapped:
                    results = _called(func, args)
                return pytree.map_tensors(swapped.sample, results)

            return on_tensors

        self.functions = [lifted(func) for func in functions]
