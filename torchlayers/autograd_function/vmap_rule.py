"""The vmap rule: calls the Function's vmap staticmethod, or generates a batching rule for it.

With generate_vmap_rule a batched Function is generated, whose forward, setup_context, backward and
jvp each run under a vmap entered for that call, and so see one sample.

NOTE [setup_context runs under vmap]
setup_context has to save the values of one sample. Sum, for example, saves the shape of its input
to expand the gradient to it: for a batch of B inputs of shape (4,) that must be (4,). Outside vmap
it would be (B, 4), to which every sample's gradient would be expanded.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.autograd_function import context, generated_classes, keyed_random, methods
from torchlayers.autograd_function.batching import Dims, add_batch_dims, remove_batch_dims
from torchlayers.autograd_function.custom_function_call import Function, custom_function_call
from torchlayers.autograd_function.vmap_rule_gradients import (
    in_dims_of_tangents,
    reductify,
    reductify_tangent,
)
from torchlayers.core import pytree
from torchlayers.core.errors import FunctionError
from torchlayers.core.torch_private import functorch


class VmapInfo(NamedTuple):
    """Describes the active vmap to a Function's vmap staticmethod.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        ...     @staticmethod
        ...     def vmap(info, in_dims, x):
        ...         print(info)
        ...         return Double.apply(x), in_dims[0]
        >>> torchlayers.vmap(Double.apply)(torch.ones(3))
        VmapInfo(batch_size=3, randomness='error')
        tensor([2., 2., 2.])

    Source: torch.autograd.Function.vmap, in torch's notes on extending torch.func.
    """

    batch_size: int
    randomness: str


@custom_function_call.py_impl(functorch.TransformType.Vmap)
def _run_batched(interpreter: Any, function: Function, *operands: Any) -> Any:
    name = generated_classes.name_of(function)
    if keyed_random.may_draw(function) and (key := _C.next_key()) is not None:
        function, operands = keyed_random.with_key_operand(function), (*operands, key)
    info = VmapInfo(interpreter.batch_size(), interpreter.randomness())
    values, in_dims = remove_batch_dims(operands, interpreter.level())
    if all(dim is None for dim in in_dims):
        by = f"vmap (level {interpreter.level()})"
        try:
            with _C.Below():
                outputs = custom_function_call.on_top(function, *values)
        except RuntimeError as error:
            if not (function.generate_vmap_rule and methods.reads_batched(error, by)):
                methods.explain_captured(function, error)
                raise
        else:
            _C.note_made(_tensors(outputs), _tensors(values), interpreter.level())
            return outputs
    if _is_ambiguous(function):
        raise FunctionError(
            f"torchlayers: {name} has both a vmap staticmethod and "
            "generate_vmap_rule=True, so vmap can't tell which to use. Delete one."
        )
    if function.generate_vmap_rule:
        vmapped = _generate_cached(function, in_dims, info)
        with _C.Below(enters_again=True):
            outputs, out_dims = _split_dims(custom_function_call.on_top(vmapped, *values))
    elif methods.has_vmap(function):
        with _C.Below():
            try:
                outputs, out_dims = run_vmap(function, info, in_dims, values)
            except RuntimeError as error:
                methods.explain_captured(function, error, "vmap")
                raise
    else:
        raise FunctionError(
            f"torchlayers: vmap does not know how to batch {name}. If its methods use only torch "
            f"operators, set {name}.generate_vmap_rule = True; otherwise define a vmap "
            "staticmethod."
        )
    return pytree.map_outputs(
        lambda output, dim: output if dim is None else _C.add_batch_dim(output, dim),
        outputs,
        values,
        operands,
        out_dims,
    )


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.leaves(values) if isinstance(leaf, Tensor)]


def _is_ambiguous(function: Function) -> bool:
    return function.generate_vmap_rule and methods.has_vmap(function)


def leaves_with_dims(where: str, outputs: Any, out_dims: Any) -> tuple[list[Any], list[int | None]]:
    """Returns the leaves of a rule's outputs, and the out_dim of each; errors begin with where."""
    leaves, spec = pytree.flatten(outputs)
    dims = pytree.broadcast(out_dims, spec)
    if dims is None:
        raise FunctionError(
            f"{where} returned out_dims that don't match its output: out_dims are "
            f"{pytree.describe(pytree.flatten(out_dims)[1])}, the output is "
            f"{pytree.describe(spec)} (* is a leaf)."
        )
    return leaves, dims


def run_vmap(
    function: Any, info: VmapInfo, in_dims: tuple[Any, ...], operands: tuple[Any, ...]
) -> tuple[Any, list[int | None]]:
    """Calls the vmap staticmethod; returns its outputs, and the out_dim of each of their leaves."""
    name = generated_classes.name_of(function)
    result = function.vmap(info, in_dims, *operands)
    if not (isinstance(result, tuple) and len(result) == 2):
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise FunctionError(
            f"torchlayers: {name}.vmap must return a tuple (output, out_dims), got {got}."
        )
    outputs, out_dims = result
    flat, dims = leaves_with_dims(f"torchlayers: {name}.vmap", outputs, out_dims)
    for i, (leaf, dim) in enumerate(zip(flat, dims, strict=True)):
        if dim is None or not isinstance(leaf, Tensor):
            continue
        if not isinstance(dim, int) or not -leaf.dim() <= dim < leaf.dim():
            raise FunctionError(
                f"torchlayers: {name}.vmap returned out_dim {dim!r} for output {i}, "
                f"of shape {tuple(leaf.shape)}: it must be None or an int in "
                f"[{-leaf.dim()}, {leaf.dim() - 1}]."
            )
    return outputs, dims


def _generate_cached(function: Function, in_dims: tuple[Any, ...], info: VmapInfo) -> Function:
    generated: Function = generated_classes.generate_cached(
        function, (in_dims, info), lambda function: _generate(function, in_dims, info)
    )
    return generated


def _split_dims(outputs: tuple[Any, ...]) -> tuple[Any, list[int | None]]:
    """Splits the results of a vmapped Function into its outputs and their batch dimensions, the
    last result."""
    dims = outputs[-1]
    assert isinstance(dims, Dims)
    results = outputs[0] if dims.is_single else outputs[:-1]
    flat = pytree.broadcast(
        dims.tree[0] if dims.is_single else dims.tree, pytree.flatten(results)[1]
    )
    assert flat is not None
    return results, flat


def _generate(function: Function, in_dims: tuple[Any, ...], info: VmapInfo) -> Function:
    backward_of_one, jvp_of_one = methods.backward_of(function), methods.jvp_of(function)
    name = generated_classes.name_of(function)

    def forward(*operands: Any) -> Any:
        with _C.vmap_again_entry(*info) as level:
            outputs = function.forward(*add_batch_dims(operands, in_dims))
            values, out_dims = remove_batch_dims(pytree.as_tuple(outputs), level)
        return (*values, Dims(out_dims, is_single=not isinstance(outputs, tuple)))

    # NOTE [setup_context runs under vmap]
    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        dims = outputs[-1]
        with _C.vmap_again_entry(*info) as level:
            one_sample = context.SampleContext(ctx, level, name)
            samples = add_batch_dims(inputs, in_dims)
            results = add_batch_dims(outputs[:-1], dims.tree)
            function.setup_context(
                one_sample, tuple(samples), results[0] if dims.is_single else tuple(results)
            )
            shapes = [leaf.shape if isinstance(leaf, Tensor) else None for leaf in samples]
            context.save_setup_context(one_sample, dims, shapes)

    def backward(ctx: Any, *grads: Any) -> Any:
        record = context.saved_state_of(ctx)
        is_boxed = methods.is_boxed(function)
        grads = (grads[0] if is_boxed else grads)[:-1]
        with _C.vmap_again_entry(*info, record.again_of) as level:
            one_sample = context.open_sample_context(ctx, level, name)
            samples = add_batch_dims(grads, record.out_dims.tree)
            gradients = backward_of_one(one_sample, *((samples,) if is_boxed else samples))
            values, dims = remove_batch_dims(pytree.as_tuple(gradients), level)
            context.close_sample_context(one_sample)
        return tuple(
            reductify(value, dim, in_dim, info.batch_size, shape)
            for value, dim, in_dim, shape in zip(
                values, dims, in_dims, record.input_shapes, strict=False
            )
        )

    def jvp(ctx: Any, *tangents: Any) -> Any:
        record = context.saved_state_of(ctx)
        with _C.vmap_again_entry(*info, record.again_of) as level:
            one_sample = context.open_sample_context(ctx, level, name)
            results = jvp_of_one(
                one_sample, *add_batch_dims(tangents, in_dims_of_tangents(in_dims, tangents))
            )
            values, dims = remove_batch_dims(pytree.as_tuple(results), level)
            context.close_sample_context(one_sample)
        out_tangents = tuple(
            reductify_tangent(value, dim, out_dim, info.batch_size)
            for value, dim, out_dim in zip(values, dims, record.out_dims.tree, strict=True)
        )
        return (*out_tangents, None)

    return generated_classes.function_class(
        torch.autograd.Function,
        f"Vmapped{function.__name__}",
        function,
        forward=forward,
        setup_context=setup_context,
        backward=backward,
        jvp=jvp,
    )
