"""The run of a function on fake tensors, from which its graph is captured."""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.fx import Node, Proxy
from torch.fx.experimental import proxy_tensor

from torchlayers import _C
from torchlayers.compiler.capture.bytecode import keep_user_code
from torchlayers.compiler.capture.dispatch_mode import CaptureDispatchMode
from torchlayers.compiler.capture.errors import (
    BackwardInsideError,
    ConjugatedError,
    ContainerError,
    RetainedGradientError,
    UnsupportedTensorError,
    describe_unsupported,
    refuse_hidden_tensors,
)
from torchlayers.compiler.capture.function_mode import FunctionRuleMode
from torchlayers.compiler.capture.input_names import input_names
from torchlayers.compiler.capture.optimizers import (
    OptimizerSteps,
)
from torchlayers.compiler.capture.recording import BackwardSignature, OutputSource
from torchlayers.compiler.capture.reverse_pass import capture_reverse_pass
from torchlayers.compiler.capture.side_effects import SideEffects
from torchlayers.compiler.capture.state import outside_world
from torchlayers.compiler.capture.state.carried_tensors import size_carrier
from torchlayers.compiler.capture.state.released_guards import Place
from torchlayers.compiler.capture.state.state_holders import StatePlace, original_of, unwrapped
from torchlayers.compiler.capture.state.written_state import WrittenState
from torchlayers.compiler.capture.tensor_hooks import HookedTensor, calls_hooks
from torchlayers.compiler.capture.tensor_mutations import TensorMutations
from torchlayers.compiler.capture.values.data_independent import (
    SkippedChecks,
    data_independent_rules,
)
from torchlayers.compiler.capture.values.indexing import TensorIndexing
from torchlayers.compiler.capture.values.memory_reads import memory_read_rules
from torchlayers.compiler.capture.values.number_operands import (
    MAKING_RULES,
    conversions_traced,
)
from torchlayers.compiler.capture.values.reads import (
    TensorReads,
)
from torchlayers.compiler.capture.values.tensor_arrays import TensorArray
from torchlayers.compiler.capture.values.traced_numbers import (
    HostArray,
    HostNumber,
    TensorNumber,
    UnknownArrayUseError,
)
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import TransformError, location
from torchlayers.core.private_names import lookup
from torchlayers.core.tensors.deepcopy import deepcopy_by_clone
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import FakeTensor, FakeTensorMode, dispatch_modes
from torchlayers.fx.fake_tensors import fake_like, symbolic_like, symbolic_shapes
from torchlayers.fx.recomputation import Recomputations, track_recomputations
from torchlayers.fx.size_steps import SYMBOLIC

# Reading the memory of a fake tensor, which is not initialized, is an error.
_NO_MEMORY = {"fake_tensor_allow_unsafe_data_ptr_access": False}


def _line() -> str:
    """The user's line that calls an operator: "In train.py:7, `x.sin()`." """
    return location().strip()


class Capture:
    """A capture in progress."""

    def __init__(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        gradients: bool,
        symbolic: Sequence[set[int]] | None,
        guarded: bool,
        writes: bool,
        replaced: Collection[Place],
        lines: bool,
        reads: TensorReads | None,
        symbolic_state: Mapping[int, set[int]],
        sizes: Sequence[StatePlace],
    ) -> None:
        self.func = func
        self.symbolic_state = {**symbolic_state}
        self.sizes = sizes if symbolic is not None else ()
        self.carriers: list[tuple[StatePlace, Tensor]] = []  # of sizes
        self.line = _line if lines else None
        self.guarded = guarded
        self.keeps_writes = writes
        self.replaced = replaced
        self.symbolic = symbolic
        self.leaves, self.spec = pytree.flatten((tuple(args), kwargs))
        self.names = input_names(func, args, kwargs)
        self.wants_gradients = gradients
        self.inputs: list[Node] = []
        self.captured: dict[int, tuple[Tensor, FakeTensor]] = {}
        self.cotangents: list[Node] = []
        self.unused: list[Node] = []  # inputs that nothing reads
        self.gradients: BackwardSignature | None = None
        self.watch = TensorMutations(self)
        self.reads = reads
        # Whether a call is captured, and not a graph made for the user, or of a fixed function.
        self.is_of_call = reads is not None or symbolic is not None
        self.subscripts = TensorIndexing(func)
        self.effects = SideEffects.none()
        self.steps = OptimizerSteps()
        self.calls_hooks = False  # those of captured tensors
        self.refusal: TransformError | None = None
        self.ran = _C.RanCode()
        self.python: WrittenState
        self.traced: list[StatePlace] | None = None  # places of numbers to trace
        self.traces_draws = False
        self.containers: Collection[int] = ()  # the ids of those to which it may only add

    def run(self) -> list[Any]:
        with tracing_state.patched(lookup("torch._functorch.config"), _NO_MEMORY):
            self.mode = FakeTensorMode(
                allow_fallback_kernels=True,
                allow_non_fake_inputs=True,
                shape_env=None if self.symbolic is None else symbolic_shapes(),
            )
        if self.reads is not None:
            mode: Any = proxy_tensor.get_proxy_mode()
            self.reads.start(mode.tracer.root)
        with self.mode:
            inputs = [
                self.argument(leaf, name) if isinstance(leaf, Tensor) else leaf
                for leaf, name in zip(self.leaves, self.names, strict=True)
            ]
            self.arguments = len(self.inputs)
            args, kwargs = pytree.unflatten(inputs, self.spec)
            self.spec = pytree.flatten((args, kwargs))[1]  # a torch.Size has become a tuple
            recomputations = Recomputations()
            checks = SkippedChecks()
            ran = self.ran if self.guarded else None
            bottom = CaptureDispatchMode(
                self.func, self.capture, recomputations, checks, ran, self.refuse, self.reads
            )
            instead = FunctionRuleMode(
                {
                    **data_independent_rules(checks),
                    **memory_read_rules(self.func, self.reads),
                    **self.subscripts.rules,
                    Tensor.item: self.item,
                    Tensor.__deepcopy__: deepcopy_by_clone,
                    torch.autograd.grad: self.grad,
                    **self.watch.rules,
                    **(MAKING_RULES if self.reads is not None else {}),
                },
                self.reads,
                self.subscripts.note_call,
            )
            with self.steps.noted(), track_recomputations(recomputations), bottom, instead:
                try:
                    symbolic = [*map(self.symbol, self.sizes)]
                    if self.traced is not None:
                        self.python.trace(self.traced, self.traces_draws, symbolic, self.containers)
                        if self.reads is not None:
                            self.reads.defers_arrays = self.python.any_array
                    else:
                        traces_rates = self.keeps_writes and self.is_of_call
                        self.python.start(symbolic, traces_rates=traces_rates)
                    if self.guarded:
                        self.ran.start()
                    with self.python.draws_traced(), self.conversions_traced():
                        result = self.func(*args, **kwargs)
                    outside_world.raise_if_caught()
                    leaves, self.out_spec = pytree.flatten(result)
                    result = None
                    if self.reads is not None:
                        self.reads.check_arrays()
                    with torch.DisableTorchFunction():
                        self.watch.note_backward()
                        self.refuse_backward(inputs)
                        self.refuse_other_leaves((args, kwargs), inputs)
                        computed = self.sort_outputs(leaves, inputs)
                    self.hooked = self.hooks_called()
                    gradients = (
                        capture_reverse_pass(self, computed, inputs) if self.wants_gradients else []
                    )
                finally:
                    if self.guarded:
                        self.ran.stop()
                    with torch.DisableTorchFunction():
                        self.watch.put_back()
                    if self.reads is not None:
                        self.reads.stop()
        return [*computed, *gradients]

    def conversions_traced(self) -> contextlib.AbstractContextManager[None]:
        if self.reads is None or not self.reads.traces_floats:
            return contextlib.nullcontext()
        return conversions_traced(self.python.modules(), bool(self.containers))

    def argument(self, leaf: Tensor, name: str) -> Tensor:
        dims = None if self.symbolic is None else self.symbolic[len(self.inputs)]
        fake = self.input(leaf, name, symbolic=dims).requires_grad_(leaf.requires_grad)
        self.note_input(leaf)
        self.watch.add_argument(fake, leaf)
        return fake

    def symbol(self, place: StatePlace) -> tuple[StatePlace, Any]:
        """Returns a symbolic integer for one that is in a place, with the place."""
        with dispatch_modes._disable_current_modes():
            carrier = size_carrier(place.read())
        self.carriers.append((place, carrier))
        self.symbolic_state[id(carrier)] = {0}
        with torch.DisableTorchFunction():
            return place, self.capture(carrier).shape[0]

    def note_input(self, value: Tensor) -> None:
        """Notes the value of the last input, for reads."""
        if self.reads is not None:
            self.reads.add_input(self.inputs[-1], value)

    def input(
        self, like: Tensor, name: str, *, dense: bool = False, symbolic: set[int] | None = None
    ) -> FakeTensor:
        """Adds an input to the graph, at its end, with the metadata of this tensor.

        ``dense``: each element has its own memory, even if the tensor is expanded.
        """
        mode: Any = proxy_tensor.get_proxy_mode()
        with proxy_tensor.disable_proxy_modes_tracing():
            if dense:
                with self.mode:
                    like = torch.empty_like(like)
            fake = (
                symbolic_like(self.mode, like, symbolic) if symbolic else fake_like(self.mode, like)
            )
            proxy: Proxy = mode.tracer.create_proxy("placeholder", name, (), {}, name=name)
            proxy.node.target = proxy.node.name  # a unique identifier
            proxy_tensor.track_tensor_tree(fake, proxy, constant=None, tracer=mode.tracer)
        self.inputs.append(proxy.node)
        return fake

    def capture(self, tensor: Tensor) -> FakeTensor:
        """Returns the fake tensor for a tensor that the function captured."""
        if id(tensor) not in self.captured:
            if (kind := describe_unsupported(tensor)) is not None:
                self.refuse(UnsupportedTensorError(self.func, kind))
            if tensor.is_conj() or tensor.is_neg():
                self.refuse(ConjugatedError(self.func))
            dims = self.symbolic_state.get(id(tensor))
            fake = self.input(tensor, f"captured_{len(self.captured)}", symbolic=dims)
            self.note_input(tensor)
            self.captured[id(tensor)] = (tensor, fake)
            self.watch.add_captured(tensor)
        return self.captured[id(tensor)][1]

    def item(self, x: Tensor) -> Any:
        """Replaces ``x.item()``."""
        return self.steps.item(x, Tensor.item if self.reads is None else self.reads.item)

    def refuse(self, error: TransformError) -> NoReturn:
        """Raises the error, of which TorchScript's interpreter keeps the text alone, or nothing."""
        self.refusal = error
        raise error

    def grad(self, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        """Replaces ``torch.autograd.grad``, and notes whether it calls hooks of tensors."""
        self.calls_hooks = self.calls_hooks or calls_hooks(inputs)
        return torch.autograd.grad(outputs, inputs, *rest, **named)

    def refuse_backward(self, inputs: list[Any]) -> None:
        """Raises if a call of backward() has left gradients without data in .grad."""
        captured = [tensor for tensor, _ in self.captured.values()]
        wrong = [
            tensor
            for tensor in [*inputs, *captured]
            if isinstance(tensor, Tensor)
            and tensor.is_leaf
            and isinstance(tensor.grad, FakeTensor)
            and not self.watch.has_grad_of(tensor)
        ]
        for tensor in wrong:
            tensor.grad = None
        if wrong:
            raise BackwardInsideError(self.func)
        for tensor in captured:
            if tensor.retains_grad and isinstance(tensor.grad, FakeTensor):
                tensor.grad = None
                raise RetainedGradientError(self.func)

    def hooks_called(self) -> list[HookedTensor]:
        if not self.calls_hooks:
            return []
        captured = [tensor for tensor, _ in self.captured.values()]
        return [HookedTensor.now(tensor) for tensor in captured if tensor.requires_grad]

    def refuse_other_leaves(self, arguments: Any, inputs: list[Any]) -> None:
        """Raises if a list or dict among the arguments was changed: the caller's would not be."""
        leaves, spec = pytree.flatten(arguments)
        if spec != self.spec or any(a is not b for a, b in zip(leaves, inputs, strict=True)):
            raise ContainerError(self.func)

    def sort_outputs(self, leaves: list[Any], inputs: list[Any]) -> list[Tensor]:
        """Finds the source of each leaf of the result; returns the leaves that are computed."""
        arguments = {id(leaf): i for i, leaf in enumerate(inputs) if isinstance(leaf, Tensor)}
        computed: dict[int, tuple[int, Any]] = {}
        self.outputs = []
        for leaf in leaves:
            leaf = original_of(leaf)
            if type(leaf) in (HostArray, TensorArray):
                raise UnknownArrayUseError
            if type(leaf) is HostNumber and type(leaf.value) not in (int, float):
                leaf = leaf.plain()
            if type(leaf) in (TensorNumber, HostNumber):
                if type(leaf) is TensorNumber:
                    number = unwrapped(leaf.tensor)
                else:
                    number = self.capture(leaf.as_result())
                index, _ = computed.setdefault(id(number), (len(computed), number))
                self.outputs.append(OutputSource("number", index))
            elif isinstance(leaf, SYMBOLIC):
                index, _ = computed.setdefault(id(leaf), (len(computed), leaf))
                self.outputs.append(OutputSource("computed", index))
            elif not isinstance(leaf, Tensor):
                refuse_hidden_tensors(leaf, self.func)
                self.outputs.append(OutputSource("constant", leaf))
            elif id(leaf) in arguments:
                self.outputs.append(OutputSource("argument", arguments[id(leaf)]))
            elif not isinstance(leaf, FakeTensor):
                self.capture(leaf)
                self.outputs.append(OutputSource("captured", [*self.captured].index(id(leaf))))
            else:
                index, _ = computed.setdefault(id(leaf), (len(computed), leaf))
                self.outputs.append(OutputSource("computed", index))

        def also_computed(result: Any) -> int:
            return computed.setdefault(id(result), (len(computed), result))[0]

        self.effects = self.watch.finish(also_computed)
        if self.keeps_writes:
            written = self.python.find(self.watch.input_of, also_computed)
            written = written._replace(sizes=self.carriers)
            self.effects = self.effects._replace(writes=written)
            if self.reads is not None:
                users = [code for code, _ in keep_user_code(self.ran.codes)]
                known = {*map(id, leaves), *self.python.floats}
                self.reads.check_numbers(known, users, self.python.numbers is not None)
        self.effects.leaves.extend(
            index
            for index, leaf in computed.values()
            if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.grad_fn is None
        )
        return self.detached([leaf for _, leaf in computed.values()], inputs)

    def detached(self, outputs: list[Any], given: list[Any]) -> list[Any]:
        """Detaches outputs that don't require grad but share memory with an input that does."""
        inputs = [leaf for leaf in given if isinstance(leaf, Tensor) and leaf.requires_grad]
        inputs += [fake for tensor, fake in self.captured.values() if tensor.requires_grad]
        memories = {*map(storage_of, inputs)} - {None}
        return [
            output.detach()
            if isinstance(output, Tensor)
            and not output.requires_grad
            and storage_of(output) in memories
            else output
            for output in outputs
        ]
