"""Calls of operators to check rules with: those that op_db's samples make, and variants of them."""

import contextlib
import copy
import itertools
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import operator_schema, pytree
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import OpOverload
from torchlayers.transforms.layers.layer import Layer
from torchlayers.transforms.layers.rule_table import TAGS, RuleTable
from torchlayers.transforms.testing.differentiable import has_derivatives
from torchlayers.transforms.vjp import vjp

VARIANTS = ("zeros", "infinities", "nan", "ties", "empty", "0-dim", "non-contiguous")
_SHAPES = ("empty", "0-dim")
_NUMBERS = {
    "zeros": (0.0, -0.0),
    "infinities": (torch.inf, -torch.inf, 1.0),
    "nan": (torch.nan, 1.0),
    "ties": (0.5,),
}
_SAMPLES_OF_OTHERS = 4  # of each operator that may call the one that is looked for
_MAX_ELEMENTS = 4096


class Call:
    """A call of an operator or an autograd.Function, with arguments that can be replaced.

    Attributes:
        places: those among the leaves of the arguments that have derivatives.
    """

    def __init__(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], label: str = ""
    ) -> None:
        self.op = op
        self._leaves, self._spec = pytree.flatten((tuple(args), dict(kwargs)))
        self.places = [
            i
            for i, leaf in enumerate(self._leaves)
            if has_derivatives(leaf) and leaf.layout is torch.strided
        ]
        self._label = label

    @property
    def tensors(self) -> list[Tensor]:
        return [self._leaves[i] for i in self.places]

    def leaf(self, place: int) -> Any:
        return self._leaves[place]

    def with_tensors(self, tensors: Sequence[Tensor], label: str) -> "Call":
        leaves = list(self._leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.unflatten(leaves, self._spec)
        return Call(self.op, args, kwargs, self._label).add_label(label)

    def function(self, places: Sequence[int]) -> Callable[..., Any]:
        """The operator as a function of some of the leaves. Returns a tensor, or a tuple."""

        def f(*tensors: Tensor) -> Any:
            leaves = list(self._leaves)
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = pytree.unflatten(leaves, self._spec)
            if self.is_random:  # draws the same in each call
                torch.default_generator.manual_seed(0)
            results = called(self.op)(*args, **kwargs)
            return tuple(results) if isinstance(results, (tuple, list)) else results

        return f

    def is_possible(self) -> bool:
        """Whether the operator accepts the arguments."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.function(())()
        except Exception:
            return False
        return True

    def variants(self, names: Iterable[str]) -> Iterator["Call"]:
        """The call with other tensors: see VARIANTS. Leaves out what the operator refuses."""
        for name in names:
            if name in _SHAPES and _trusts_shapes(self.op):
                continue
            for tensors in _change_tensors(self.tensors, name):
                call = self.with_tensors(tensors, name)
                if call.is_possible():
                    yield call
                    break

    @property
    def size(self) -> int:
        return sum(leaf.numel() for leaf in self._leaves if isinstance(leaf, Tensor))

    @property
    def is_random(self) -> bool:
        return isinstance(self.op, OpOverload) and operator_schema.is_random(self.op)

    @property
    def depth(self) -> int:
        return max(x.dim() for x in self.tensors)

    @property
    def signature(self) -> tuple[str, str, str]:
        """What is given, with which numbers of dimensions, and which other values, as strings."""
        args, kwargs = pytree.unflatten(self._leaves, self._spec)
        present = len(args), sorted(kwargs), [arg is None for arg in args]
        tensors = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        dims = [(x.dim(), x.dtype, x.numel() == 0) for x in tensors]
        others = [leaf for leaf in self._leaves if not isinstance(leaf, Tensor)]
        return str(present), str(dims), str(others)

    def add_label(self, label: str) -> "Call":
        """The same call with something added to its label."""
        call = copy.copy(self)
        call._label = f"{self._label}, {label}" if self._label else label
        return call

    def __str__(self) -> str:
        args, kwargs = pytree.unflatten([_short(leaf) for leaf in self._leaves], self._spec)
        words = [*(_plain(arg) for arg in args), *(f"{k}={_plain(v)}" for k, v in kwargs.items())]
        return f"{self._label}: ({', '.join(words)})"


def _trusts_shapes(op: Any) -> bool:
    """Whether only other operators call this one: its kernel may read past the end of tensors of
    shapes that these would not give it."""
    name = schema_of(op).name.split("::")[-1] if isinstance(op, OpOverload) else ""
    return name.startswith("_") or "_backward" in name


class _Word(str):
    __slots__ = ()
    __repr__ = str.__str__


def _short(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return _Word(describe_tensor(leaf))


def describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{[*tensor.shape]}"


def _plain(value: Any) -> str:
    return repr(value).removeprefix("torch.")


def called(op: Any) -> Callable[..., Any]:
    is_function = isinstance(op, type) and issubclass(op, torch.autograd.Function)
    return op.apply if is_function else op  # type: ignore[no-any-return]


def _change_tensors(tensors: Sequence[Tensor], variant: str) -> Iterator[list[Tensor]]:
    """Ways to change an operator's tensors, the first one that it accepts being used."""
    if variant in _NUMBERS:
        yield [_fill(x, _NUMBERS[variant], shift) for shift, x in enumerate(tensors)]
    elif variant == "non-contiguous" and any(x.dim() for x in tensors):
        yield [strided(x) for x in tensors]
    elif variant == "empty":
        for dim in (0, -1):
            yield [x.narrow(dim, 0, 0) if x.dim() else x for x in tensors]
        deepest = max(x.dim() for x in tensors)
        yield [x[:0] if x.dim() == deepest > 0 else x for x in tensors]
    elif variant == "0-dim" and all(x.numel() for x in tensors):
        yield [x.flatten()[0].clone() for x in tensors]


def _fill(x: Tensor, numbers: Sequence[float], shift: int) -> Tensor:
    """x with numbers repeated in it. The shift is for two arguments not to be the same."""
    repeated = torch.tensor(numbers, dtype=x.dtype, device=x.device).roll(-shift)
    return repeated.repeat(x.numel() // len(numbers) + 1)[: x.numel()].reshape(x.shape)


def strided(x: Tensor) -> Tensor:
    """x with its last two dimensions in the other order in memory, and gaps between elements."""
    if x.dim() == 0:
        return x
    turned = x.mT if x.dim() > 1 else x
    spread = torch.stack([turned, turned], -1)[..., 0]
    return spread.mT if x.dim() > 1 else spread


def matches(key: Any, op: Any) -> bool:
    """Whether a rule's key, or an entry of `ops`, names the operator."""
    if key is op:
        return True
    if not isinstance(op, OpOverload):
        return False
    return op.overloadpacket == key or (isinstance(key, str) and TAGS[key](op))


class Recorder(Layer):
    """Records the calls of operators that a layer with certain rules would see."""

    name = "recorder"
    wants: Callable[[Any], bool]

    def __init__(self, calls: list[tuple[Any, Any, Any]]) -> None:
        self._calls = calls

    def process(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_followed = any(map(self._owns, pytree.leaves((args, kwargs))))
        if is_followed and type(self).wants(op):
            self._calls.append((op, *self._copy_tensors((args, kwargs))))
        results = self.send_down(op, args, kwargs)
        return pytree.map_tensors(self.tensor, results) if is_followed else results

    def _copy_tensors(self, args: Any) -> Any:
        return pytree.map_leaves(
            lambda leaf: self._value(leaf).detach().clone() if isinstance(leaf, Tensor) else leaf,
            args,
        )


class _Kept:
    """Stands for a layer's rules in its recorder, which has to see the wanted operators too."""

    def __init__(self, rules: RuleTable, wants: Callable[[Any], bool]) -> None:
        self._rules = rules
        self.cache = _C.RuleCache()
        self._wants = wants

    def find(self, op: Any) -> Any:
        return self._rules.find(op) or (self._wants(op) or None)


def recorded(
    rules: RuleTable, keys: Sequence[Any], dtypes: Sequence[torch.dtype], limit: int
) -> dict[Any, list[Call]]:
    """The calls, by operator, that op_db's samples make of the operators that some key names.

    Composite operators are decomposed as they are for a layer with the rules. Of each operator, at
    most `limit` calls are chosen, that differ as much as possible in how its arguments are given.
    """
    # Takes seconds to import, and this function alone uses it.
    op_db = lookup("torch.testing._internal.common_methods_invocations.op_db")

    def wants(op: Any) -> bool:
        return any(matches(key, op) for key in keys)

    recorder = type("Recorder", (Recorder,), {"wants": staticmethod(wants)})
    recorder._rules = _Kept(rules, wants)  # type: ignore[attr-defined]
    calls: dict[Any, list[Call]] = {}

    def run(entry: Any, dtype: torch.dtype, most: int | None, gradient: bool = False) -> None:
        for sample in itertools.islice(_samples(entry, dtype), most):
            seen: list[tuple[Any, Any, Any]] = []
            # A sample that fails, for what it does between the operators, has made these calls.
            with contextlib.suppress(Exception):
                _run(recorder(seen), entry.op, sample, gradient)
            for op, args, kwargs in seen:
                calls.setdefault(op, []).append(Call(op, args, kwargs))

    def are_enough() -> bool:
        return not any(isinstance(key, str) for key in keys) and all(
            any(matches(key, op) for op in calls) for key in keys
        )

    names = {_bare(key) for key in keys if not isinstance(key, str)}
    with preserve_random_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known: list[Any] = op_db
        device = torch.get_default_device().type
        for dtype in dtypes:
            entries = [op for op in known if dtype in op.supported_dtypes(device)]
            first = [entry for entry in entries if names & _names(entry)]
            for entry in first:
                run(entry, dtype, None)
            if not are_enough():
                for entry in entries:
                    if entry not in first:
                        run(entry, dtype, _SAMPLES_OF_OTHERS)
            if not are_enough():  # operators that only gradients call
                for entry in entries:
                    run(entry, dtype, _SAMPLES_OF_OTHERS, gradient=True)
    return {op: _chosen(calls_of_op, limit) for op, calls_of_op in calls.items()}


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """For op_db and random operators, which draw from the global generators. Restores these."""
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            random.seed(0)
            yield
    finally:
        random.setstate(state)


def _samples(entry: Any, dtype: torch.dtype) -> Iterator[Any]:
    # OpInfo.sample_inputs would look for a unittest on the stack at each sample.
    try:
        yield from entry.sample_inputs_func(entry, torch.get_default_device(), dtype, False)
    except (RuntimeError, ImportError):  # of samples that need another build of torch
        return


def _run(layer: Recorder, op: Callable[..., Any], sample: Any, gradient: bool) -> None:
    """Calls op, or computes its gradient, with the sample's tensors as tensors of the layer."""
    call = Call(op, (sample.input, *sample.args), sample.kwargs)

    def f(*tensors: Tensor) -> list[Tensor]:
        results = pytree.leaves(call.function(call.places)(*tensors))
        return [result for result in results if has_derivatives(result)]

    def differentiated(*tensors: Tensor) -> Any:
        outputs, pull = vjp(f, *tensors)
        return pull([torch.ones_like(output) for output in outputs])

    with layer:
        layer.apply(differentiated if gradient else f, *map(layer.tensor, call.tensors))


def _bare(key: Any) -> str:
    """An operator's name without what op_db's lacks: convolution, of aten::_convolution."""
    name = schema_of(key).name if isinstance(key, OpOverload) else str(key)
    name = name.replace("::", ".").split(".")[-1]
    return name.strip("_").removeprefix("native_").removesuffix("_copy")


def _names(entry: Any) -> set[str]:
    name = entry.name
    return {name.split(".")[-1], name.replace(".", "_"), entry.aten_name}


def _chosen(calls: Sequence[Call], limit: int) -> list[Call]:
    """First a call for each set of arguments that are given; then, in turn, calls with new numbers
    of dimensions, and with new values of arguments that are not tensors."""
    ordered = [call for call in calls if call.places]
    ordered = [call for call in ordered if call.size <= _MAX_ELEMENTS] or ordered
    ordered.sort(key=lambda call: (call.size == 0, -call.depth))
    chosen: dict[int, Call] = {}

    def new(*parts: int) -> Iterator[Call]:
        seen = set()
        for call in ordered:
            if (signature := tuple(call.signature[part] for part in parts)) not in seen:
                seen.add(signature)
                yield call

    turns = itertools.zip_longest(new(0, 1), new(0, 2))
    for call in [*new(0), *itertools.chain(*turns)]:
        if call is not None:
            chosen.setdefault(id(call), call)
    return [call.add_label(f"#{i}") for i, call in enumerate([*chosen.values()][:limit])]
