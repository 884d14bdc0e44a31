"""What each transform would do with an operator: a rule, torch's formula, a loop, or an error.

The answers follow the layers (csrc/layers: vmap/vmap.cpp, jvp.cpp, grad.cpp), which ask in the same
order. Whether torch has a derivative, it says only when it is asked to record one; so an
operator without a rule of ours is recorded once, on fake tensors, which computes nothing.
"""

import contextlib
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchlayers import _C
from torchlayers.core import operator_schema
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    OpOverload,
    torch_c,
)
from torchlayers.transforms import decompositions

MODES = ("vmap", "jvp", "grad")

NOTHING = "-"  # the operator has no tensor that the transform could follow, or no derivative
TYPED, RULE, TORCHS, APART = "typed kernel", "rule", "torch's", "decomposed"
DRAWS, LOOPS, FAILS = "draws", "loops", "fails"

# Why an operator is a problem, and what to do, by the transform and what it does.
ADVICE = {
    ("vmap", LOOPS): "it has no batching rule, so it is called for one sample after the other",
    ("vmap", FAILS): "it can't run on a batch; vmap(fallback='loop') runs f sample by sample",
    ("vmap", DRAWS): "it draws random numbers: pass randomness= to vmap",
    ("jvp", FAILS): "it has no forward-mode formula; register one with extend.jvp_rule, or use "
    "reverse mode",
    ("grad", FAILS): "it has no reverse-mode formula; register one with extend.vjp_rule",
}

_forward_ad: Any = forward_ad  # it has no types
_FLOATS = {"f16", "bf16", "f32", "f64", "c64", "c128"}
# Of tensors of which only a trace knows: whether they have derivatives.
DTYPES = {"i64": torch.int64, "i32": torch.int32, "bool": torch.bool, "u8": torch.uint8}
_READS_NUMBER = {"aten::item", "aten::is_nonzero", "aten::_local_scalar_dense"}


class OperatorCall(NamedTuple):
    """The first call of an operator: its arguments, with descriptions in place of tensors.

    ``op`` is an OpOverload, or the class of an autograd.Function.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class TensorDescription(NamedTuple):
    """What a fake tensor is made from; ``is_strided`` is False if none can be."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_strided: bool


def described(arg: Any) -> Any:
    """An argument with descriptions in place of its tensors."""
    if isinstance(arg, Tensor):
        is_strided = arg.layout is torch.strided and not arg.is_nested
        sizes = (tuple(arg.shape), arg.stride()) if is_strided else ((), ())
        return TensorDescription(*sizes, arg.dtype, arg.device, is_strided)
    if isinstance(arg, (list, tuple)):
        return [described(item) for item in arg]
    return arg


def what_happens(call: OperatorCall, outputs: tuple[str, ...]) -> dict[str, str]:
    """What vmap, jvp and grad would do with the operator, if they follow its tensors.

    Args:
        call: its first call.
        outputs: the short names of the dtypes of its results.
    """
    if not isinstance(call.op, OpOverload):
        return _of_function(call.op)
    has_derivative = any(dtype in _FLOATS for dtype in outputs) and any(
        tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in _tensors(call)
    )
    does = {
        "vmap": _under_vmap(call),
        "jvp": _under_jvp(call) if has_derivative else NOTHING,
        "grad": _under_grad(call) if has_derivative else NOTHING,
    }
    if does["vmap"] == DRAWS:  # draws without a formula are constants
        does.update({mode: NOTHING for mode in ("jvp", "grad") if does[mode] == FAILS})
    return does


def _of_function(cls: Any) -> dict[str, str]:
    base = torch.autograd.Function
    has_vmap = cls.vmap is not base.vmap
    generated = APART if getattr(cls, "generate_vmap_rule", False) else FAILS
    return {
        "vmap": RULE if has_vmap else generated,
        "jvp": RULE if cls.jvp is not base.jvp else FAILS,
        "grad": RULE if cls.backward is not base.backward else FAILS,
    }


def _under_vmap(call: OperatorCall) -> str:
    op = call.op
    name = op.name()
    if schema_of(op).name in _READS_NUMBER:
        return FAILS
    if operator_schema.is_random(op) or _has_kernel(op, "FuncTorchVmapMode"):
        return DRAWS
    if not _tensors(call):
        return NOTHING
    if name in _typed():
        return TYPED
    if name in _rules_for_batches() or _is_pointwise(op):
        return RULE
    has_torchs = _has_kernel(op, "FuncTorchBatched")
    is_composite = operator_schema.is_composite(op)
    if "::_foreach_" in name or (
        is_composite and _has_kernel(op, "FuncTorchBatchedDecomposition") and not has_torchs
    ):
        return APART
    if has_torchs:  # where samples would have results of different sizes, torch's rule refuses
        is_refused = torch.Tag.dynamic_output_shape in op.tags and name != "aten::index.Tensor"
        return FAILS if is_refused else TORCHS
    if _functional(op) is not None:  # is written as copy_ of that
        return RULE
    if _may_be_looped(op, call):
        return LOOPS
    calls_others = _is_users(op) and _has_kernel(op, "CompositeExplicitAutograd")
    return APART if is_composite or calls_others else FAILS


def _may_be_looped(op: OpOverload, call: OperatorCall) -> bool:
    returns_tensors = all(str(result.type) == "Tensor" for result in schema_of(op).returns)
    takes_lists = any(isinstance(arg, list) and _tensors_in(arg) for arg in call.args)
    aliases = operator_schema.writes(op) or operator_schema.returns_alias(op)
    return returns_tensors and not takes_lists and not aliases


def _under_jvp(call: OperatorCall) -> str:
    op = call.op
    schema = schema_of(_functional(op) or op)
    name = schema.name, schema.overload_name
    if _C.operator_facts(*name)["is_constant"]:
        return NOTHING
    if _C.has_jvp_rule(*name):
        return RULE
    if operator_schema.is_composite(op):
        return APART
    can_be_decomposed = decompositions.find(*name) is not None
    if op.namespace == "prims":
        return APART if can_be_decomposed else FAILS
    if op.namespace != "aten":  # what is registered from Python is for reverse mode
        return FAILS
    if _has_torchs_formula(call, forward_mode=True):
        return TORCHS
    return APART if can_be_decomposed and not operator_schema.writes(op) else FAILS


def _under_grad(call: OperatorCall) -> str:
    op = call.op
    name = schema_of(op).name, schema_of(op).overload_name
    if _C.operator_facts(*name)["is_constant"]:
        return NOTHING
    if _C.has_vjp_rule(*name) and not operator_schema.writes(op):
        return RULE
    if operator_schema.is_composite(op):
        return APART
    if _is_users(op):
        definition = _custom_ops().get(schema_of(op).name)
        if definition is not None:  # it has a kernel for autograd in any case
            return TORCHS if definition._backward_fn is not None else FAILS
        keys = ("Autograd", "AutogradCPU", "AutogradCUDA")
        return TORCHS if any(_has_kernel(op, key) for key in keys) else FAILS
    return TORCHS if _has_torchs_formula(call, forward_mode=False) else FAILS


def _has_torchs_formula(call: OperatorCall, forward_mode: bool) -> bool:
    """Records the operator by torch's autograd, on fake tensors: or on zeros, where the shapes of
    its results depend on data."""
    if not all(tensor.is_strided for tensor in _tensors(call)):
        return True
    try:
        try:
            return _is_recorded(call, forward_mode, FakeTensorMode())
        except (DataDependentOutputException, DynamicOutputShapeException):
            return _is_recorded(call, forward_mode, contextlib.nullcontext())
    except Exception as error:  # or it does not run on such tensors: torch has most formulas
        message = str(error)
        return "forward AD" not in message and not (
            "derivative for" in message and "not implemented" in message
        )


def _is_recorded(
    call: OperatorCall, forward_mode: bool, mode: contextlib.AbstractContextManager[Any]
) -> bool:
    def make(arg: Any) -> Any:
        if isinstance(arg, list):
            return [make(item) for item in arg]
        if not isinstance(arg, TensorDescription):
            return arg
        tensor = torch.empty_strided(arg.shape, arg.stride, dtype=arg.dtype, device=arg.device)
        with torch.no_grad():
            tensor.zero_()
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        if forward_mode:
            return _forward_ad.make_dual(tensor, torch.zeros_like(tensor))
        leaves.append(tensor.requires_grad_())
        return tensor.view_as(tensor)  # a leaf could not be written to

    leaves: list[Tensor] = []

    with mode, torch.enable_grad(), forward_ad.dual_level():
        args = [make(arg) for arg in call.args]
        kwargs = {name: make(arg) for name, arg in call.kwargs.items()}
        results = call.op(*args, **kwargs)
        several = results if isinstance(results, (list, tuple)) else [results]
        recorded = [
            result for result in several if isinstance(result, Tensor) and result.requires_grad
        ]
        if not forward_mode and recorded:
            torch.autograd.grad(
                recorded, leaves, [*map(torch.ones_like, recorded)], allow_unused=True
            )
    return True


def _tensors(call: OperatorCall) -> list[TensorDescription]:
    return [tensor for arg in (*call.args, *call.kwargs.values()) for tensor in _tensors_in(arg)]


def _tensors_in(arg: Any) -> list[TensorDescription]:
    if isinstance(arg, TensorDescription):
        return [arg]
    return [tensor for item in arg for tensor in _tensors_in(item)] if isinstance(arg, list) else []


@functools.cache
def _typed() -> frozenset[str]:
    return frozenset(_C.typed_operators())


@functools.cache
def _rules_for_batches() -> frozenset[str]:
    return frozenset(_C.batching_rules())


def _custom_ops() -> Any:
    return lookup("torch._library.custom_ops.OPDEFS", {})


def _has_kernel(op: OpOverload, key: str) -> bool:
    name: str = op.name()  # type: ignore[no-untyped-call]
    return bool(torch_c._dispatch_has_kernel_for_dispatch_key(name, key))


def _is_users(op: OpOverload) -> bool:
    return op.namespace not in ("aten", "prims")


def _is_pointwise(op: OpOverload) -> bool:
    """As find_pointwise in csrc/core/operator.cpp."""
    schema = schema_of(op)
    return (
        torch.Tag.pointwise in op.tags
        and op.namespace == "aten"
        and not schema.is_mutable
        and [str(argument.type) for argument in schema.returns] == ["Tensor"]
        and not operator_schema.is_composite(op)
        and not {"memory_format", "generator"} & {argument.name for argument in schema.arguments}
    )


@functools.cache
def _functional(op: OpOverload) -> OpOverload | None:
    """The out-of-place form of an in-place operator: add for add_."""
    schema = schema_of(op)
    base = schema.name.partition("::")[2]
    if not schema.is_mutable or not base.endswith("_") or base.endswith("__"):
        return None
    packet = getattr(getattr(torch.ops, op.namespace), base[:-1], None)
    overload = schema.overload_name or "default"
    for name in (overload, "Tensor_" + overload, "default"):
        candidate: OpOverload | None = getattr(packet, name, None)
        if candidate is not None and [
            str(argument.type) for argument in schema_of(candidate).arguments
        ] == [str(argument.type) for argument in schema.arguments]:
            return (
                None
                if schema_of(candidate).is_mutable or operator_schema.is_view(candidate)
                else candidate
            )
    return None
