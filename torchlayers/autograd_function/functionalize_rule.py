"""The functionalize rule: runs a Function's methods without mutations.

For each Function another is generated. While a graph is being traced, its forward, backward and
jvp each run under a functionalize entered for that call. Its forward returns the values that the
Function wrote to its inputs as new tensors; these become the values of the functional tensors that
wrap the inputs.

NOTE [Functions that read memory]
A functional tensor has no memory: NumPy makes an array of whatever is at its address, without an
error. Functions are where NumPy is used. So unless a graph is being traced, where the difference
would show, their methods get plain tensors and may mutate them.
"""

from collections.abc import Sequence
from typing import Any

import torch

from torchlayers import _C
from torchlayers.autograd_function import generated_classes, methods, vmap_rule
from torchlayers.autograd_function.context import UnmarkedDirtyContext
from torchlayers.autograd_function.custom_function_call import Function, custom_function_call
from torchlayers.core import pytree
from torchlayers.core.errors import FunctionError
from torchlayers.core.tensors.tensor_versions import version_of
from torchlayers.core.torch_private import dispatch_modes, functorch, torch_private
from torchlayers.transforms.functionalize import functional, unwrapped


class _MutatedInputs:
    """Which outputs are inputs that forward has written to: an additional, non-tensor output."""

    def __init__(self, places: dict[int, int], copied: set[int], is_single: bool) -> None:
        self.input_of_output = places
        self.copied = copied  # the outputs that are new tensors holding the written values
        self.is_single = is_single


@custom_function_call.py_impl(functorch.TransformType.Functionalize)
def _without_mutations(interpreter: Any, function: Function, *operands: Any) -> Any:
    _C.adopt_saved_hooks()  # while the stack is whole. NOTE [Where a hook runs]
    level = interpreter.level()
    keeps_views = interpreter.functionalize_add_back_views()
    values = pytree.map_all_tensors(lambda operand: unwrapped(operand, level), operands)
    with _C.Below():
        layer = _C.python_layer_on_top()
        has_own_rule = layer is not None and layer._has_function_rule(function)
        result = custom_function_call.on_top(function, *values) if has_own_rule else None
    if has_own_rule:  # rules are pure
        return pytree.map_tensors(lambda leaf: _track_output(leaf, level), result)
    generated = generated_classes.generate_cached(
        function, ("functionalized", keeps_views), lambda f: _generate(f, keeps_views)
    )
    with _C.Below():
        *outputs, written = custom_function_call.on_top(generated, *values)
    results = []
    for i, output in enumerate(outputs):
        if i in written.input_of_output:
            operand = operands[written.input_of_output[i]]
            _write(operand, output)
            results.append(operand)
        else:
            results.append(pytree.map_tensors(lambda leaf: _track_output(leaf, level), output))
    return results[0] if written.is_single else tuple(results)


def _write(operand: torch.Tensor, value: torch.Tensor) -> None:
    """Gives an operand the value that the Function wrote to it, visible to all later reads."""
    if torch_private._is_functional_tensor(operand):
        torch_private._functionalize_replace(operand, value)
        torch_private._functionalize_commit_update(operand)
        torch_private._functionalize_sync(operand)
    elif operand is not value:  # a captured tensor: written in place
        with _C.Below():
            operand.copy_(value)


def _track_output(output: torch.Tensor, level: int) -> torch.Tensor:
    output = _C.unbatched(output, level)[0]  # a captured tensor, seen from this layer
    # Computed from captured tensors alone, it may belong to an outer functionalize; torch can't
    # wrap such a tensor again.
    return output if torch_private._is_functional_tensor(output) else functional(output, level)


def _value(arg: Any, level: int) -> Any:
    return unwrapped(arg, level) if isinstance(arg, torch.Tensor) else arg


def _find_mutated(args: Sequence[Any], before: Sequence[Any], level: int) -> list[bool]:
    """Returns for each argument whether its value has been replaced since `before`."""
    pairs = zip(args, before, strict=True)
    return [
        isinstance(arg, torch.Tensor) and _value(arg, level) is not value for arg, value in pairs
    ]


def _check_returned(
    function: Function, changed: Sequence[bool], operands: Sequence[Any], outputs: Any
) -> None:
    """Refuses a write that autograd does not know of, and that the graph would not have."""
    returned = [id(output) for output in pytree.as_tuple(outputs)]
    for i, operand in enumerate(operands):
        if changed[i] and id(operand) not in returned:
            raise FunctionError(
                f"torchlayers: {function.__name__}.forward writes to its input {i} and does not "
                "return it: the write would be missing from the graph that is traced. Return the "
                "input, and mark it with ctx.mark_dirty; or write to a copy."
            )


def _is_recorded() -> bool:
    """Whether a graph is being traced. NOTE [Functions that read memory]."""
    return bool(dispatch_modes._get_current_dispatch_mode_stack())


def _generate(function: Function, keeps_views: bool) -> Function:
    backward_of_one, jvp_of_one = methods.backward_of(function), methods.jvp_of(function)
    set_up = methods.setup_context_of(function)

    def run(method: Any, *args: Any) -> tuple[Any, list[Any], Any, list[bool]]:
        """Returns the method's result without functional tensors, its arguments and result with
        them, and which arguments it wrote to, as far as functional tensors record that."""
        if not _is_recorded():
            result = method(*args)
            return result, list(args), result, [False] * len(args)
        top = _C.top()
        if top is not None and top[0] == "functionalize":  # entered by an enclosing Function's rule
            before = [_value(arg, top[1]) for arg in args]
            result = method(*args)
            return result, list(args), result, _find_mutated(args, before, top[1])
        with _C.functionalize_entry(keeps_views) as level:
            wrapped = pytree.map_all_tensors(lambda leaf: functional(leaf, level), args)
            functionals = method(*wrapped)
            changed = _find_mutated(wrapped, args, level)
            if method is function.forward:
                _check_returned(function, changed, wrapped, functionals)
            result = pytree.map_tensors(lambda leaf: unwrapped(leaf, level), functionals)
            return result, wrapped, functionals, changed

    def forward(*operands: Any) -> Any:
        versions = [version_of(operand) for operand in operands]
        outputs, wrapped, raw_outputs, changed = run(function.forward, *operands)
        places = {
            id(leaf): i
            for i, (leaf, operand, version) in enumerate(
                zip(wrapped, operands, versions, strict=True)
            )
            if isinstance(operand, torch.Tensor) and (version_of(operand) != version or changed[i])
        }
        written = {
            i: places[id(output)]
            for i, output in enumerate(pytree.as_tuple(raw_outputs))
            if id(output) in places
        }
        is_single = not isinstance(outputs, tuple)
        outputs = pytree.as_tuple(outputs)
        # Compared here, since a vmap may have wrapped the tensors again before setup_context.
        copied = {i for i, place in written.items() if outputs[i] is not operands[place]}
        return (*outputs, _MutatedInputs(written, copied, is_single))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        *results, written = outputs
        after = list(inputs)
        for i, place in written.input_of_output.items():
            if i in written.copied:
                after[place] = results[i]
                ctx = UnmarkedDirtyContext(ctx)
        set_up(ctx, tuple(after), results[0] if written.is_single else tuple(results))

    def backward(ctx: Any, *grads: Any) -> Any:
        if methods.is_boxed(function):
            return run(backward_of_one, ctx, grads[0][:-1])[0]
        return run(backward_of_one, ctx, *grads[:-1])[0]

    def jvp(ctx: Any, *tangents: Any) -> Any:
        results = run(jvp_of_one, ctx, *tangents)[0]
        return (*pytree.as_tuple(results), None)

    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        outputs, out_dims = vmap_rule.run_vmap(function, info, in_dims, operands)
        written = _MutatedInputs({}, set(), is_single=not isinstance(outputs, tuple))
        return (*pytree.as_tuple(outputs), written), (*out_dims, None)

    return generated_classes.function_class(
        torch.autograd.Function,
        function.__name__,
        function,
        forward=forward,
        setup_context=setup_context,
        backward=backward,
        jvp=jvp,
        vmap=vmap if methods.has_vmap(function) else None,
    )
