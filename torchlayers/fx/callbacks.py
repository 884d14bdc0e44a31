"""Operators that call Python functions: torchlayers.pure_callback and io_callback.

In a captured graph they are nodes, which call the function at each run. An operator takes no
functions, so it takes the number of one, and a :class:`CallbackSpec` as text.

NOTE [How long callbacks live]
A function that is called at once is forgotten after the call. One that a graph or a tape may call
later is kept for good, once for each function: neither tells when it ends.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

from torchlayers import _C
from torchlayers.core.device import has_data
from torchlayers.core.errors import FunctionError, MissingDerivativeError, location
from torchlayers.core.operator_rules import custom_rules, plain_derivatives
from torchlayers.core.torch_private import AUTOGRAD, dispatch_keys, dispatch_modes

# Defined and implemented here; kept, because the operators go with it.
_library = plain_derivatives.Library()
_ARGUMENTS = "Tensor[] values, int callback, SymInt[] sizes, str spec"

Callback = Callable[[list[Tensor]], list[Any]]


class CallbackSpec(NamedTuple):
    """Describes a call, as text.

    Attributes:
        api, name: of the public function and the callback, for errors.
        line: the user's line, if the call is captured.
        method: how samples are passed: "sequential", "expand_dims" or "broadcast_all".
        loops: the number of leading dimensions, of samples, for each of which it is called.
        dims: the number of dimensions of each result.
        dtypes, devices: of the results, by name.
    """

    api: str
    name: str
    line: str
    method: str
    loops: int
    dims: list[int]
    dtypes: list[str]
    devices: list[str]

    def __str__(self) -> str:
        return json.dumps(self)

    @staticmethod
    def parse(text: str) -> "CallbackSpec":
        return CallbackSpec(*json.loads(text))

    def empty(self, sizes: Sequence[int], values: Sequence[Tensor]) -> list[Tensor]:
        """Tensors for the results; on meta, if an argument is there."""
        rest = iter(sizes)
        absent = next((value.device for value in values if not has_data(value)), None)
        return [
            torch.empty(
                [next(rest) for _ in range(dims)],
                dtype=getattr(torch, dtype),
                device=absent or device,
            )
            for dims, dtype, device in zip(self.dims, self.dtypes, self.devices, strict=True)
        ]

    def with_samples(self, size: int, sizes: Sequence[int]) -> tuple["CallbackSpec", list[int]]:
        """The call for all samples of a vmap, and the sizes of its results."""
        rest = iter(sizes)
        every = [
            size_of_dim
            for dims in self.dims
            for size_of_dim in (size, *itertools.islice(rest, dims))
        ]
        loops = self.loops + (self.method == "sequential")
        return self._replace(loops=loops, dims=[dims + 1 for dims in self.dims]), every


_callbacks: dict[int, Callback] = {}
_numbers_of_functions: dict[
    Any, int
] = {}  # the numbers of functions, NOTE [How long callbacks live]
_numbers = itertools.count()


@contextlib.contextmanager
def registered(callback: Callback, key: Callable[[], Any], *, is_captured: bool) -> Iterator[int]:
    """Inside, the callback has a number; for good if the call is captured, one for each key."""
    if is_captured or dispatch_modes._get_current_dispatch_mode_stack():
        yield _number_for_good(callback, key())
        return
    number = next(_numbers)
    _callbacks[number] = callback
    try:
        yield number
    finally:
        del _callbacks[number]


def _number_for_good(callback: Callback, key: Any) -> int:
    try:
        number = _numbers_of_functions.setdefault(key, next(_numbers))
    except TypeError:  # a function or a constant without a hash
        number = next(_numbers)
    _callbacks.setdefault(number, callback)
    return number


def _run(values: list[Tensor], callback: int, sizes: list[int], spec: str) -> list[Tensor]:
    description = CallbackSpec.parse(spec)
    results = description.empty(sizes, values)
    if not all(map(has_data, values)):
        return results
    function = _callbacks[callback]

    def call() -> None:
        loops = description.loops
        samples = [*results, *values][0].shape[:loops] if loops else ()
        for index in itertools.product(*map(range, samples)):
            with torch.enable_grad(), dispatch_keys(allowing=AUTOGRAD):
                outputs = function([value.detach()[index] for value in values])
            _copy([result[index] for result in results], outputs, description)

    _C.at_level(0, call)
    return results


def _copy(results: list[Tensor], outputs: list[Any], spec: CallbackSpec) -> None:
    """Copies what a callback returned, which it may change later, after checking it."""
    where = f"torchlayers: {spec.api}: {spec.name}"
    line = spec.line or location()
    for i, (result, output) in enumerate(zip(results, outputs, strict=True)):
        output = torch.as_tensor(output, dtype=_dtype_of_number(output, result))
        if output.shape != result.shape or output.dtype != result.dtype:
            raise FunctionError(
                f"{where} returned {_described(output)} as result {i}, but result_like has "
                f"{_described(result)}.{line}"
            )
        with torch.no_grad():
            result.copy_(output)


def _dtype_of_number(output: Any, result: Tensor) -> torch.dtype | None:
    return result.dtype if isinstance(output, (bool, int, float, complex)) else None


def _described(tensor: Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)} and {tensor.dtype}"


def _fake(values: list[Tensor], callback: int, sizes: list[int], spec: str) -> list[Tensor]:
    return CallbackSpec.parse(spec).empty(sizes, values)


def no_derivative(spec: str) -> MissingDerivativeError:
    description = CallbackSpec.parse(spec)
    return MissingDerivativeError(
        f"torchlayers: {description.api}: {description.name} is Python code without a derivative."
        f"{description.line or location()} Call it in a function with a rule of its own "
        "(torchlayers.custom_jvp, custom_vjp), or detach its arguments."
    )


def _define(name: str) -> Any:
    """Defines an operator for a public function."""
    _library.define(f"{name}({_ARGUMENTS}) -> Tensor[]")  # type: ignore[no-untyped-call]
    _library.impl(name, _run, "CompositeExplicitAutograd")
    qualified = f"torchlayers::{name}"
    op = getattr(torch.ops.torchlayers, name).default
    torch.library.register_fake(qualified, _fake, lib=_library)

    @custom_rules.jvp_rule(op)
    def pushed(primals: Any, tangents: Any) -> Any:
        raise no_derivative(primals[3])

    @custom_rules.vjp_rule(op)
    def pulled(cotangents: Any, primals: Any, results: Any) -> Any:
        raise no_derivative(primals[3])

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.spec = inputs[3]

    def backward(ctx: Any, cotangents: Any) -> Any:
        raise no_derivative(ctx.spec)

    torch.library.register_autograd(qualified, backward, setup_context=keep, lib=_library)

    def batched(
        info: Any, in_dims: Any, values: Any, callback: int, sizes: Any, spec: str
    ) -> tuple[list[Tensor], list[int]]:
        of_all, every = CallbackSpec.parse(spec).with_samples(info.batch_size, sizes)
        size = 1 if of_all.method == "expand_dims" else info.batch_size
        in_front = [
            value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(values, in_dims[0], strict=True)
        ]
        results = op(in_front, callback, every, str(of_all))
        return results, [0] * len(results)

    torch.library.register_vmap(qualified, batched, lib=_library)
    return op


def _io_in_order(
    order: Tensor, values: list[Tensor], callback: int, sizes: list[int], spec: str
) -> list[Tensor]:
    results = CallbackSpec.parse(spec).empty(sizes, values)
    torch.ops.torchlayers.io_callback_in_order(order, results, values, callback, sizes, spec)
    return results


def _write_results(order: Tensor, results: list[Tensor], *args: Any) -> None:
    for result, output in zip(results, _run(*args), strict=True):
        result.copy_(output)


_library.define(  # type: ignore[no-untyped-call]
    f"io_callback_in_order(Tensor(a!) order, Tensor(b!)[] results, {_ARGUMENTS}) -> ()"
)
_library.impl("io_callback_in_order", _write_results, "CompositeExplicitAutograd")
torch.library.register_fake("torchlayers::io_callback_in_order", lambda *args: None, lib=_library)

pure_callback = _define("pure_callback")
io_callback = _define("io_callback")
has_side_effect(io_callback)
CALLBACK_OPS = {pure_callback, io_callback}
# For Inductor, as debug_ops.IN_ORDER.
IO_IN_ORDER = {io_callback: _io_in_order}
