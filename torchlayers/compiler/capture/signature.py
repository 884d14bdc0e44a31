"""Signatures: two calls run the same captured graph if their signatures are equal."""

import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Buffer, Parameter

from torchlayers import _C
from torchlayers.compiler.capture.errors import unhashable
from torchlayers.core import pytree
from torchlayers.core.device import autocast_device_types, default_device_restored

PLAIN = (Tensor, Parameter, Buffer)


class AmbientModes(NamedTuple):
    """The modes and settings around a call that affect what a function does."""

    grad: bool
    inference: bool
    dtype: torch.dtype
    autocast: tuple[tuple[bool, torch.dtype], ...]
    deterministic: bool
    device: torch.device | None  # the default one
    settings: int  # of torch: choice of kernels, matmul precision, anomaly mode

    @property
    def any_autocast(self) -> bool:
        return any(enabled for enabled, _ in self.autocast)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores autocast and the default device inside."""
        with ExitStack() as stack:
            stack.enter_context(default_device_restored(self.device))
            for device, (enabled, dtype) in zip(
                autocast_device_types(), self.autocast, strict=True
            ):
                stack.enter_context(torch.autocast(device, dtype, enabled))
            yield


class TensorMetadata(NamedTuple):
    """The metadata of a tensor: all but its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stride: tuple[int, ...] | None  # None if the layout has no strides
    requires_grad: bool
    layout: torch.layout


def with_open(like: TensorMetadata, places: Collection[int]) -> TensorMetadata:
    """Returns the metadata with None for numbers that calls may differ in.

    Args:
        places: counted over the sizes and then the strides.
    """
    numbers: list[Any] = [*like.shape, *(like.stride or ())]
    for place in places:
        numbers[place] = None
    dims = len(like.shape)
    stride = like.stride and tuple(numbers[dims:])
    return like._replace(shape=tuple(numbers[:dims]), stride=stride)


def is_like(value: TensorMetadata, expected: TensorMetadata) -> bool:
    """Whether the metadata is as expected, where that is not open."""
    if value == expected or None not in (*expected.shape, *(expected.stride or ())):
        return value == expected
    numbers = (*value.shape, *(value.stride or ()))
    others = (*expected.shape, *(expected.stride or ()))
    return (
        value._replace(shape=expected.shape, stride=expected.stride) == expected
        and len(value.shape) == len(expected.shape)
        and all(other is None or one == other for one, other in zip(numbers, others, strict=True))
    )


def is_plain(tensor: Tensor) -> bool:
    """Whether shape, dtype and strides describe the tensor fully, apart from its data."""
    return (
        type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


class Constant(NamedTuple):
    """A value that is not a tensor. Values of different types are never equal: 1, 1.0 and True.

    Hashes are compared as well: an object that holds tensors, as a frozen dataclass may, has a hash
    by their identities, while its == compares their values.
    """

    kind: type
    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant) or hash(self) != hash(other):
            return False
        return self.kind is other.kind and bool(self.value == other.value)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.kind, self.value))


class Signature(NamedTuple):
    """The signature of a call; a later call with an equal one runs the same captured graph."""

    spec: pytree.TreeSpec
    leaves: tuple[TensorMetadata | Constant, ...]
    static: tuple[Constant, ...]
    modes: AmbientModes

    def key(self) -> Any:
        """Returns the parts that are hashable."""
        return self.leaves, self.static, self.modes


def modes() -> AmbientModes:
    return AmbientModes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        tuple(
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in autocast_device_types()
        ),
        torch.are_deterministic_algorithms_enabled(),
        _C.default_device(),
        _C.torch_settings(),
    )


def tensor_metadata(tensor: Tensor) -> TensorMetadata:
    strided = tensor.layout is torch.strided
    return TensorMetadata(
        tuple(tensor.shape),
        tensor.dtype,
        tensor.device,
        tensor.stride() if strided else None,
        tensor.requires_grad,
        tensor.layout,
    )


def constant(value: Any, where: str) -> Constant:
    """Makes a Constant; raises TransformError if the value is not hashable."""
    if type(value) is float:  # as bytes: nan equals nan, and 0.0 differs from -0.0
        return Constant(float, struct.pack("d", value))
    if type(value) is complex:
        return Constant(complex, struct.pack("dd", value.real, value.imag))
    if type(value) is slice:  # which has no hash before Python 3.12
        return Constant(slice, (value.start, value.stop, value.step))
    try:
        hash(value)
    except TypeError:
        raise unhashable(where, value) from None
    return Constant(type(value), value)


def signature(
    leaves: Sequence[Any], spec: pytree.TreeSpec, static: Sequence[Any] = ()
) -> Signature:
    """Returns the signature of a call with these leaves, and these static arguments."""
    return Signature(
        spec,
        tuple(
            tensor_metadata(leaf)
            if isinstance(leaf, Tensor)
            else constant(leaf, argument_name(spec, i))
            for i, leaf in enumerate(leaves)
        ),
        tuple(constant(value, "a static argument") for value in static),
        modes(),
    )


def explain_new_signature(now: Signature, before: Signature) -> str:
    """Describes how a call's signature differs from the most similar one before it."""
    if now.modes != before.modes:
        return _differing_modes(now.modes, before.modes)
    if now.spec != before.spec:
        return (
            f"the arguments have the structure {pytree.describe(now.spec)}, had "
            f"{pytree.describe(before.spec)}"
        )
    for i, (one, other) in enumerate(zip(now.leaves, before.leaves, strict=True)):
        if one != other:
            return f"{argument_name(now.spec, i)} {describe_difference(one, other)}"
    if len(now.static) != len(before.static):
        return f"{len(now.static)} of the arguments are static, {len(before.static)} were"
    for one, other in zip(now.static, before.static, strict=True):
        if one != other:
            return f"a static argument {describe_difference(one, other)}"
    return "a captured tensor has changed"


def describe_difference(one: TensorMetadata | Constant, other: TensorMetadata | Constant) -> str:
    """Describes the first difference of two leaves: ``has shape (9,), was (8,)``."""
    if isinstance(one, TensorMetadata) and isinstance(other, TensorMetadata):
        for field, new, old in zip(TensorMetadata._fields, one, other, strict=True):
            if new != old:
                if field == "requires_grad":
                    return "requires grad, and did not" if new else "does not require grad, and did"
                return f"has {field} {new}, was {old}"
    return f"is {_shown(one)}, was {_shown(other)}"


def count_differences(now: Signature, before: Signature) -> int:
    """Returns the number of places in which two signatures differ."""
    if now.spec != before.spec:
        return 1 + len(now.leaves) + len(before.leaves)
    pairs = zip(now.leaves + now.static, before.leaves + before.static, strict=False)
    return (now.modes != before.modes) + sum(one != other for one, other in pairs)


def describe_leaves(signature: Signature) -> str:
    """Describes the leaves in short: ``f32[3, 2], 1``."""
    return ", ".join(map(_shown, [*signature.leaves, *signature.static]))


_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def _shown(value: TensorMetadata | Constant) -> str:
    if isinstance(value, TensorMetadata):
        kind = str(value.dtype).removeprefix("torch.")
        letters = kind.rstrip("0123456789")
        short = _SHORT.get(letters, letters) + kind[len(letters) :]
        return f"{short}[{', '.join('*' if size is None else str(size) for size in value.shape)}]"
    if value.kind is float:
        return repr(struct.unpack("d", value.value)[0])
    if value.kind is complex:
        return repr(complex(*struct.unpack("dd", value.value)))
    text = repr(value.value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _differing_modes(now: AmbientModes, before: AmbientModes) -> str:
    sentences = {
        "grad": "grad mode is {}",
        "inference": "inference mode is {}",
        "dtype": "the default dtype is {}",
        "autocast": "the autocast state has changed",
        "deterministic": "deterministic algorithms are {}",
        "device": "the default device is {}",
        "settings": "a setting of torch has changed (matmul precision, kernels, anomaly mode)",
    }
    for field, new, old in zip(AmbientModes._fields, now, before, strict=True):
        if new != old:
            value = {True: "on", False: "off"}.get(new, new) if isinstance(new, bool) else new
            return sentences[field].format(value)
    return ""


def argument_name(spec: pytree.TreeSpec, index: int) -> str:
    """Returns the name of a leaf in messages: ``argument 0``, ``argument x['w']``."""
    args, kwargs = pytree.unflatten(list(range(spec.num_leaves)), spec)
    for value in args:
        if index in pytree.leaves(value):
            return pytree.leaf_name("argument", args, index)
    for name, value in kwargs.items():
        if index in (leaves := pytree.leaves(value)):
            path = pytree.leaf_name("", (value,), leaves.index(index)).partition(", ")[2]
            return f"argument {name}{path}"
    return f"leaf {index}"


def what_differs_later(signature: Signature) -> tuple[str, ...]:
    """Lists what of a call's arguments leads to another capture if it differs in a later call."""
    names = [argument_name(signature.spec, i) for i in range(len(signature.leaves))]
    pairs = [*zip(names, signature.leaves, strict=True)]
    tensors = [name for name, leaf in pairs if isinstance(leaf, TensorMetadata)]
    values = [
        f"the value of {name} (now {_shown(leaf)})"
        for name, leaf in pairs
        if isinstance(leaf, Constant)
    ]
    shapes = [f"shape, strides, dtype or requires_grad of {', '.join(tensors)}"] if tensors else []
    return (*shapes, *values)
