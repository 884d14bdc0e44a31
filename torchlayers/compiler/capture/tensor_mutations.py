"""Captures changes that a function makes to tensor objects rather than to their elements.

No operator shows ``x.data = y``, ``x.requires_grad_()`` or ``x.grad = g``, so torch's functions are
watched for them. Such changes are made to the fake tensors, and to captured tensors, which are
restored after the capture; side_effects.py makes them to the caller's tensors at each call. For a
change that calls can't make, an error is raised that points to its line.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental import proxy_tensor
from torch.nn import Module
from torch.optim import Optimizer

from torchlayers.compiler.capture.errors import describe_unsupported, name_of
from torchlayers.compiler.capture.side_effects import SideEffects
from torchlayers.compiler.capture.signature import PLAIN, tensor_metadata
from torchlayers.core.errors import TransformError, location
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import FakeTensor, torch_private

_tensor: Any = Tensor
_SET_DATA, _SET_REQUIRED = _tensor.data.__set__, _tensor.requires_grad.__set__
_GET_GRAD, _SET_GRAD = _tensor.grad.__get__, _tensor.grad.__set__

_HOOK = (
    "adds a hook to an input tensor, but its Python code runs only once: register the hook "
    "outside, once"
)
_LAYOUT = (
    "changes the shape or strides of an input tensor: use the out-of-place method, and return its "
    "result"
)
# Rejected on inputs.
_OF_INPUTS: dict[Any, str] = {
    Tensor.register_hook: _HOOK,
    Tensor.register_post_accumulate_grad_hook: _HOOK,
    Tensor.t_: _LAYOUT,
    Tensor.transpose_: _LAYOUT,
    Tensor.swapaxes_: _LAYOUT,
    Tensor.swapdims_: _LAYOUT,
    Tensor.squeeze_: _LAYOUT,
    Tensor.unsqueeze_: _LAYOUT,
    Tensor.as_strided_: _LAYOUT,
}
# Rejected on any tensor.
_OF_ALL: dict[Any, str] = {
    Tensor.retain_grad: "calls retain_grad() on an intermediate tensor: return the tensor, and "
    "call retain_grad() on the result",
    Tensor.__reduce_ex__: "copies an intermediate tensor with copy.copy, or pickles it: write "
    "x.detach() for a tensor that shares its memory, x.clone() for one that does not",
    Tensor.share_memory_: "moves a tensor to shared memory: do that outside",
    Tensor.data_ptr: "reads the address of a tensor, which differs from call to call: leave that "
    "outside",
}


_ZERO_GRADS = {inspect.unwrap(each).__code__ for each in (Module.zero_grad, Optimizer.zero_grad)}


def _is_in_zero_grad() -> bool:
    """Whether a gradient is read only to be dropped, so that its value does not matter."""
    frame = sys._getframe(2)
    for _ in range(6):
        if frame.f_code in _ZERO_GRADS:
            return bool(frame.f_locals.get("set_to_none"))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


class GraphCapture(Protocol):
    """The capture in progress: see capture_run.py."""

    func: Callable[..., Any]
    leaves: list[Any]  # of its arguments
    inputs: list[Node]
    captured: dict[int, tuple[Tensor, FakeTensor]]

    def capture(self, tensor: Tensor) -> FakeTensor: ...


class TensorMutations:
    """Watches the changes to tensor objects in one capture.

    Attributes:
        rules: the replacements for torch functions, by function.
    """

    def __init__(self, recorder: GraphCapture) -> None:
        self._recorder = recorder
        # By id: the argument's fake tensor, the caller's tensor, and the attributes of the former.
        self._arguments: dict[int, tuple[Tensor, Tensor, dict[str, Any]]] = {}
        self._histories: list[tuple[Tensor, bool, Any]] = []  # of captured tensors, before
        self._moved: dict[int, Tensor] = {}  # inputs whose data was set
        self._grads: dict[int, tuple[Tensor, Tensor | None]] = {}  # before
        self._grads_set: dict[int, Tensor] = {}
        # Of captured leaves, before backward() may have added to them.
        self._grads_before: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._grads_read: dict[int, int | None] = {}
        self._storages: list[tuple[Tensor, int]] = []  # with their sizes in bytes
        self.rules: dict[Any, Callable[..., Any]] = {
            _SET_DATA: self._set_data,
            _SET_GRAD: self._set_grad,
            _GET_GRAD: self._get_grad,
            _SET_REQUIRED: self._requiring(_SET_REQUIRED),
            Tensor.requires_grad_: self._requiring(Tensor.requires_grad_),
            Tensor.detach_: self._requiring(Tensor.detach_),
            Tensor.untyped_storage: self._storage,
            Tensor.backward: self._backward,
            **{func: self._refusing(func, why, False) for func, why in _OF_INPUTS.items()},
            **{func: self._refusing(func, why, True) for func, why in _OF_ALL.items()},
        }

    def add_argument(self, fake: Tensor, argument: Tensor) -> None:
        attributes = vars(fake)
        attributes |= {
            name: value for name, value in vars(argument).items() if name not in attributes
        }
        self._arguments[id(fake)] = fake, argument, dict(attributes)

    def add_captured(self, tensor: Tensor) -> None:
        if tensor.requires_grad and tensor.is_leaf:
            self._grads_before[id(tensor)] = tensor, _GET_GRAD(tensor)
        self._histories.append((tensor, tensor.requires_grad, tensor.grad_fn))

    def note_backward(self) -> None:
        """Notes what backward() added to gradients of captured tensors, which no function shows."""
        for tensor, before in [*self._grads_before.values()]:
            if id(tensor) in self._grads or not tensor.is_leaf:
                continue
            added_in_place = before is not None and id(before) in self._recorder.captured
            if _GET_GRAD(tensor) is not before or added_in_place:
                self._note_grad(tensor)
        for tensor, before in self._grads.values():
            if tensor.is_leaf and _GET_GRAD(tensor) is not before:
                self._grads_set[id(tensor)] = tensor

    def has_grad_of(self, tensor: Tensor) -> bool:
        """Whether the function read or set its gradient."""
        return id(tensor) in self._grads

    def finish(self, computed: Callable[[Tensor], int]) -> SideEffects:
        """Returns the side effects of each call; ``computed`` makes a tensor one of the outputs."""
        self._refuse_what_is_lost()
        effects = SideEffects.none()
        effects.grads_read.update(self._grads_read)
        for tensor in self._moved.values():
            effects.data[self._place(tensor)] = computed(self._known(tensor).detach())
        for tensor in self._grads_set.values():
            gradient = tensor.grad
            effects.grad[self._place(tensor)] = (
                None if gradient is None else computed(self._known(gradient).detach())
            )
        arguments = [
            (fake, argument.requires_grad) for fake, argument, _ in self._arguments.values()
        ]
        for tensor, required in (*arguments, *(history[:2] for history in self._histories)):
            if tensor.requires_grad is not required:
                effects.requires_grad[self._place(tensor)] = tensor.requires_grad
        return effects

    def input_of(self, x: Tensor) -> int | None:
        """Returns the index of a tensor among the graph's inputs, or None; it may become one."""
        is_plain = id(x) in self._arguments or (describe_unsupported(x) is None and not x.is_conj())
        return self._place(x) if is_plain and self._is_input(x) else None

    def put_back(self) -> None:
        """Restores captured tensors."""
        for tensor, gradient in (*self._grads_before.values(), *self._grads.values()):
            if tensor.is_leaf and _GET_GRAD(tensor) is not gradient:
                tensor.grad = gradient
        for tensor, required, node in self._histories:
            if node is None and tensor.grad_fn is not None:
                tensor.detach_()
            if node is None and tensor.requires_grad is not required:
                tensor.requires_grad_(required)

    def _refuse_what_is_lost(self) -> None:
        arguments = [(fake, None) for fake, *_ in self._arguments.values()]
        for tensor, node in (
            *arguments,
            *((history[0], history[2]) for history in self._histories),
        ):
            if node is None and tensor.grad_fn is not None:
                self._refuse(
                    f"writes a tensor that requires grad to {self._name(self._place(tensor))}, "
                    "which would then require grad after the call: return the new value instead, "
                    "write its detach(), or write under torch.no_grad()",
                    False,
                )
        for fake, _, attributes in self._arguments.values():
            for name, value in vars(fake).items():
                if not name.startswith("_") and value is not attributes.get(name, self):
                    self._refuse(
                        f"sets the attribute {name!r} of {self._name(self._place(fake))}, but its "
                        "Python code runs only once: set it outside",
                        False,
                    )
        for tensor, size in self._storages:
            if tensor.untyped_storage().nbytes() != size:
                self._refuse("resizes the memory of a tensor: do that outside", False)

    def _set_data(self, x: Tensor, y: Tensor) -> None:
        if not (self._is_ours(x) and self._is_ours(y)):
            _SET_DATA(x, y)
            return
        alias: Any = self._known(y).detach()
        if isinstance(x, FakeTensor):
            _SET_DATA(x, alias)
            self._be(x, alias)
        else:
            if tensor_metadata(self._known(x))[:4] != tensor_metadata(alias)[:4]:
                self._refuse(
                    "sets .data of a captured tensor to a tensor of another shape, dtype or "
                    "strides: do that outside, or pass the tensor as an argument"
                )
            self._recorder.captured[id(x)] = x, alias
        if self._is_input(x):
            self._moved[id(x)] = x

    def _be(self, x: FakeTensor, y: Tensor) -> None:
        """Makes x refer to the graph's node of y from here on."""
        mode: Any = proxy_tensor.get_proxy_mode()
        slot: Any = proxy_tensor.get_proxy_slot(y, mode.tracer)
        proxy_tensor.set_proxy_slot(x, mode.tracer, slot)

    def _set_grad(self, x: Tensor, gradient: Tensor | None) -> None:
        if self._is_input(x):
            self._grads.setdefault(id(x), (x, _GET_GRAD(x)))
            self._grads_set[id(x)] = x
        _SET_GRAD(x, gradient)

    def _get_grad(self, x: Tensor, *owner: Any) -> Tensor | None:
        if self._is_input(x) and x.is_leaf and id(x) not in self._grads:
            if _is_in_zero_grad():
                self._set_grad(x, None)
            else:
                self._note_grad(x)
        return _GET_GRAD(x, *owner)  # type: ignore[no-any-return]

    def _note_grad(self, x: Tensor) -> None:
        """Makes an input of the gradient that an input has already."""
        argument = self._arguments[id(x)][1] if id(x) in self._arguments else x
        place = self._place(x)
        gradient = _GET_GRAD(argument) if argument.is_leaf else None
        if id(x) in self._grads_before:
            gradient = self._grads_before[id(x)][1]
        self._grads_read[place] = None
        if gradient is not None:
            fake = self._recorder.capture(gradient)
            self._grads_read[place] = self._place(gradient)
            if argument is not x:
                _SET_GRAD(x, fake)
        self._grads[id(x)] = x, _GET_GRAD(x) if argument is not x else gradient
        if _GET_GRAD(x) is not self._grads[id(x)][1]:
            self._grads_set[id(x)] = x

    def _backward(self, x: Tensor, *rest: Any, **named: Any) -> None:
        """Notes the gradients that it adds to. For those of captured tensors, see note_backward."""
        for fake, _, _ in self._arguments.values():
            if fake.requires_grad and fake.is_leaf and id(fake) not in self._grads:
                self._note_grad(fake)
                self._grads_set[id(fake)] = fake
        x.backward(*rest, **named)  # type: ignore[no-untyped-call]

    def _requiring(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def require(x: Tensor, *rest: Any, **named: Any) -> Any:
            if self._is_input(x) and id(x) not in self._arguments:
                if not x.is_leaf:
                    self._refuse("detaches a captured tensor in place: use detach()")
                self._recorder.capture(x)
            return func(x, *rest, **named)

        return require

    def _storage(self, x: Tensor) -> Any:
        if self._is_ours(x):
            x = self._known(x)
            storage = Tensor.untyped_storage(x)
            self._storages.append((x, storage.nbytes()))
            return storage
        return Tensor.untyped_storage(x)

    def _refusing(self, func: Callable[..., Any], why: str, of_all: bool) -> Callable[..., Any]:
        def refuse(x: Tensor, *rest: Any, **named: Any) -> Any:
            if self._is_input(x) or (of_all and self._is_ours(x)):
                self._refuse(why)
            return func(x, *rest, **named)

        return refuse

    def _refuse(self, why: str, is_here: bool = True) -> NoReturn:
        """Raises TransformError; if ``is_here``, it names the line that is running."""
        name = name_of(self._recorder.func)
        raise TransformError(f"torchlayers: compile: {name} {why}.{location() if is_here else ''}")

    def _is_ours(self, x: Any) -> bool:
        """Whether a tensor is fake or a plain captured one, and not wrapped by a layer."""
        return isinstance(x, FakeTensor) or (
            type(x) in PLAIN
            and x.layout is torch.strided
            and storage_of(x) is not None
            and not torch_private._is_functional_tensor(x)
        )

    def _is_input(self, x: Tensor) -> bool:
        return id(x) in self._arguments or (not isinstance(x, FakeTensor) and self._is_ours(x))

    def _known(self, x: Tensor) -> Tensor:
        return x if isinstance(x, FakeTensor) else self._recorder.capture(x)

    def _place(self, x: Tensor) -> int:
        """Returns the index of an input among those of the graph."""
        if id(x) in self._arguments:
            return [*self._arguments].index(id(x))
        self._recorder.capture(x)
        return len(self._arguments) + [*self._recorder.captured].index(id(x))

    def _name(self, place: int) -> str:
        if place >= len(self._arguments):
            return f"captured tensor {place - len(self._arguments)}"
        return f"argument {self._recorder.inputs[place].name}"
