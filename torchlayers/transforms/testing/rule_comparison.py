"""Compares the results of a layer's rules with what the layer means: alone, and in nests."""

import copy
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import OutputError
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.layers.layer import Layer
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.result_preserving import RESULT_PRESERVING
from torchlayers.transforms.testing import operator_calls, part_trees
from torchlayers.transforms.testing.derivative_comparison import (
    GradientCheck,
    WrongDerivativeError,
)
from torchlayers.transforms.testing.differentiable import Differentiable, has_derivatives
from torchlayers.transforms.testing.operator_calls import Call
from torchlayers.transforms.testing.rule_report import RuleFailure, RuleReport
from torchlayers.transforms.vjp import vjp
from torchlayers.transforms.vmap import vmap

_WITH_VARIANTS = 3  # the first calls of an operator, with which its variants are made
_IN_NESTS = 2


class Result(NamedTuple):
    """A result of an operator inside a layer. parts is None if it is a constant."""

    value: Any
    parts: Any


Parts = Callable[[Tensor, torch.Generator], Any]
Meaning = Callable[..., Any]


class _Wrong(Exception):
    """A comparison that failed."""

    def __init__(self, expected: str, got: str) -> None:
        self.expected = expected
        self.got = got


class _Setting(NamedTuple):
    """A call, the arguments of it that are tensors of the layer, and their parts."""

    call: Call
    f: Callable[..., Any]
    values: tuple[Tensor, ...]
    parts: tuple[Any, ...]

    def inputs(self) -> list[Tensor]:
        """Values, then the parts' tensors."""
        return [*self.values, *(x for x in pytree.leaves(self.parts) if has_derivatives(x))]

    def filled(self, inputs: Sequence[Tensor]) -> "_Setting":
        count = len(self.values)
        leaves, spec = pytree.flatten(self.parts)
        remaining = iter(inputs[count:])
        leaves = [next(remaining) if has_derivatives(leaf) else leaf for leaf in leaves]
        return self._replace(values=tuple(inputs[:count]), parts=pytree.unflatten(leaves, spec))


class RuleComparison:
    """The checks of one layer."""

    def __init__(
        self,
        layer: Layer,
        meaning: Meaning | None,
        agrees: Meaning | None,
        parts: Parts,
        pack: Callable[[Any], Any] | None,
        unpack: Callable[[Any], Any] | None,
        variants: Sequence[str],
        nests: Sequence[str],
        atol: float,
        rtol: float,
        compare_values: bool,
        report: RuleReport,
    ) -> None:
        self._layer = layer
        self._meaning = meaning
        self._agrees = agrees
        self._parts = parts
        self._pack = pack or (lambda tree: tree)
        self._unpack = unpack or (lambda parts: parts)
        self._variants = variants
        self._nests = nests
        self._atol = atol
        self._rtol = rtol
        self._compare_values = compare_values
        self._report = report

    def run(self, op: Any, calls: Sequence[Call]) -> None:
        generator = torch.Generator().manual_seed(0)
        for i, call in enumerate(calls):
            if not self._places(call):
                continue
            alone = [self._setting(call, places, generator) for places in self._places(call)]
            is_right = [self._compare("alone", op, setting, self._alone) for setting in alone]
            if all(is_right) and i < _IN_NESTS:
                self._run_nests(op, alone[0], generator)
            if i < _WITH_VARIANTS:
                for changed in call.variants(self._variants):
                    setting = self._setting(changed, changed.places, generator)
                    self._compare("alone", op, setting, self._alone)
        if name_of_operator(op) not in self._report.checked:
            self._report.without_sample.append(
                f"{name_of_operator(op)} (none with floating-point tensors)"
            )

    def _run_nests(self, op: Any, setting: _Setting, generator: torch.Generator) -> None:
        checks: dict[str, Callable[[_Setting], None]] = {
            "vmap": self._in_vmap,
            "jvp": lambda setting: self._compare_derivatives(setting, "fwd", generator),
            "grad": lambda setting: self._compare_derivatives(setting, "rev", generator),
            "itself": lambda setting: self._in_itself(setting, generator),
        }
        for name, transform in RESULT_PRESERVING.items():
            checks[name] = functools.partial(self._compare_transformed, transform)
        for name in self._nests:
            if name in checks and not setting.call.is_random:
                self._compare(name, op, setting, checks[name])

    def _places(self, call: Call) -> list[tuple[int, ...]]:
        """All arguments as tensors of the layer, and each of them alone."""
        alone = [(place,) for place in call.places] if len(call.places) > 1 else []
        return [tuple(call.places), *alone] if call.places else []

    def _setting(self, call: Call, places: Sequence[int], generator: torch.Generator) -> _Setting:
        if len(places) < len(call.places):
            call = call.add_label(f"tensor {call.places.index(places[0])} alone")
        values = [call.leaf(place).detach() for place in places]
        parts = [self._parts(value, generator) for value in values]
        if not all(value.is_contiguous() for value in values):
            parts = pytree.map_tensors(operator_calls.strided, parts)
        return _Setting(call, call.function(places), tuple(values), tuple(parts))

    def _compare(
        self, nest: str, op: Any, setting: _Setting, check: Callable[[_Setting], None]
    ) -> bool:
        """Makes a comparison, and reports it if it fails. Returns whether it holds."""
        checked = self._report.checked
        checked[name_of_operator(op)] = checked.get(name_of_operator(op), 0) + 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(setting)
        except _Wrong as wrong:
            expected, got = wrong.expected, wrong.got
        except Exception as error:
            expected, got = "no error", _describe_error(error)
        else:
            return True
        self._report.failures.append(
            RuleFailure(name_of_operator(op), str(setting.call), nest, expected, got)
        )
        return False

    def _run_inside(
        self, f: Callable[..., Any], values: Sequence[Tensor], parts: Sequence[Any]
    ) -> tuple[Result, ...]:
        """The results of f inside the layer."""
        with copy.copy(self._layer) as layer:
            layer_tensors = [
                layer.tensor(x, self._pack(p)) for x, p in zip(values, parts, strict=True)
            ]
            results = layer.apply(f, *layer_tensors)
        return tuple(
            Result(y.value, None if y.parts is None else self._unpack(y.parts))
            if isinstance(y, LayerTensor) and y.layer is layer
            else Result(y, None)
            for y in (results if isinstance(results, tuple) else (results,))
        )

    def _run_meaning(
        self, f: Callable[..., Any], values: Sequence[Tensor], parts: Sequence[Any]
    ) -> tuple[Result, ...]:
        """The results by the meaning."""
        assert self._meaning is not None
        results = f(*values)
        if isinstance(results, tuple) and not results:  # of unbind, along a dimension of size 0
            return ()
        try:
            means = self._meaning(f, tuple(values), tuple(parts))
        except Exception as error:
            raise _Wrong(f"the meaning raises {_describe_error(error)}", "results") from error
        if not isinstance(results, tuple):
            results, means = (results,), (means,)
        return tuple(Result(y, p) for y, p in zip(results, means, strict=True))

    def _alone(self, setting: _Setting) -> None:
        self._judge(setting.f, setting.f, setting.values, setting.parts)

    def _judge(
        self,
        f: Callable[..., Any],
        means: Callable[..., Any],
        values: Sequence[Tensor],
        parts: Sequence[Any],
    ) -> None:
        """Compares f inside the layer with the meaning of `means`, which computes the same."""
        results = self._run_inside(f, values, parts)
        if self._agrees is None:
            self._same(self._run_meaning(means, values, parts), results)
            return
        if self._compare_values:
            plain = means(*values)
            plain = plain if isinstance(plain, tuple) else (plain,)
            self._same([Result(y, p) for y, (_, p) in zip(plain, results, strict=True)], results)
        try:
            message = self._agrees(means, tuple(values), tuple(parts), results)
        except AssertionError as error:
            message = str(error) or "AssertionError"
        if message:
            raise _Wrong("agreement", message)

    def _same(self, expected: Sequence[Result], got: Sequence[Result]) -> None:
        if len(expected) != len(got):
            raise _Wrong(f"{len(expected)} results", f"{len(got)}")
        for i, (x, y) in enumerate(zip(expected, got, strict=True)):
            which = f" of result {i}" if len(got) > 1 else ""
            names = [f"parts{which}"]
            pairs = [(x.parts, y.parts)]
            if self._compare_values:
                names.insert(0, f"value{which}")
                pairs.insert(0, (x.value, y.value))
            for name, pair in zip(names, pairs, strict=True):
                difference = part_trees.first_difference(*pair, name, self._atol, self._rtol)
                if difference is not None:
                    raise _Wrong(*difference)

    def _flat(self, setting: _Setting) -> tuple["_Flat", "_Flat | None"]:
        """The layer's results, and the meaning's, as tuples of tensors, of values and parts."""
        results = self._run_inside(setting.f, setting.values, setting.parts)
        if self._agrees is not None:
            return _Flat(setting, self._run_inside, self._select_parts(results)), None
        expected = self._run_meaning(setting.f, setting.values, setting.parts)
        like = part_trees.template(self._select_parts(expected), self._select_parts(results))
        return _Flat(setting, self._run_inside, like), _Flat(setting, self._run_meaning, like)

    def _select_parts(self, results: Sequence[Result]) -> tuple[Any, ...]:
        """Results without what is not to be compared."""
        return tuple(tuple(y) if self._compare_values else (None, y.parts) for y in results)

    def _in_vmap(self, setting: _Setting) -> None:
        layer, _ = self._flat(setting)
        inputs = setting.inputs()
        factors = (1.0, 0.9, 0.8)
        for batched in dict.fromkeys([len(inputs), len(setting.values), 1]):
            dims = tuple(0 if i < batched else None for i in range(len(inputs)))
            samples = [
                [x * factor if i < batched else x for i, x in enumerate(inputs)]
                for factor in factors
            ]
            stacked = [
                torch.stack([sample[i] for sample in samples]) if i < batched else x
                for i, x in enumerate(inputs)
            ]
            looped = [torch.stack(ys) for ys in zip(*(layer(*s) for s in samples), strict=True)]
            self._same_tensors(layer.names(), looped, vmap(layer, in_dims=dims)(*stacked))

    def _compare_derivatives(
        self, setting: _Setting, mode: str, generator: torch.Generator
    ) -> None:
        layer, meaning = (f and f.differentiable() for f in self._flat(setting))
        assert layer is not None
        inputs = setting.inputs()
        if not layer.names():
            return
        if meaning is None:
            arguments = [f"input {i}" for i in range(len(inputs))]
            function = Differentiable(layer, (), arguments, layer.names())
            try:
                GradientCheck("", 1, (mode,), None, None, None, generator).run(function, inputs)
            except WrongDerivativeError as error:
                expected, got = error.difference.expected, error.difference.got
                raise _Wrong(f"{error.what}: {expected}", f"{got:.6g}") from None
            except OutputError:  # at the edge of its domain
                return
            return

        def random(like: Sequence[Tensor]) -> tuple[Tensor, ...]:
            device = generator.device
            return tuple(
                torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device).to(x.device)
                for x in like
            )

        if mode == "fwd":
            tangents = random(inputs)
            pairs = [jvp(f, tuple(inputs), tangents)[1] for f in (meaning, layer)]
            names = [f"the tangent of {name}" for name in layer.names()]
        else:
            cotangents = random(layer(*inputs))
            pairs = [vjp(f, *inputs)[1](cotangents) for f in (meaning, layer)]
            names = [f"the gradient of input {i}" for i in range(len(inputs))]
        self._same_tensors(names, *pairs)

    def _in_itself(self, setting: _Setting, generator: torch.Generator) -> None:
        layer, meaning = self._flat(setting)
        inputs = setting.inputs()
        parts = [self._parts(x, generator) for x in inputs]
        self._judge(layer, layer if meaning is None else meaning, inputs, parts)

    def _compare_transformed(
        self, transform: Callable[[Callable[..., Any]], Callable[..., Any]], setting: _Setting
    ) -> None:
        layer, _ = self._flat(setting)
        inputs = setting.inputs()
        self._same_tensors(layer.names(), layer(*inputs), transform(layer)(*inputs))

    def _same_tensors(
        self, names: Sequence[str], expected: Sequence[Tensor], got: Sequence[Tensor]
    ) -> None:
        for name, x, y in zip(names, expected, got, strict=True):
            difference = part_trees.first_difference(x, y, name, self._atol, self._rtol)
            if difference is not None:
                raise _Wrong(*difference)


class _Flat:
    """A computation of results with parts, as a function of tensors that returns tensors.

    Args:
        like: the template of the results, which has a tensor where others may have None.
    """

    def __init__(
        self,
        setting: _Setting,
        compute: Callable[..., Sequence[Result]],
        like: tuple[Any, ...],
        keep: Callable[[Any], bool] = lambda leaf: isinstance(leaf, Tensor),
    ) -> None:
        self._setting = setting
        self._compute = compute
        self._like = like
        self._keep = keep

    def differentiable(self) -> "_Flat":
        return _Flat(self._setting, self._compute, self._like, has_derivatives)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        setting = self._setting.filled(inputs)
        results = self._compute(setting.f, setting.values, setting.parts)
        return tuple(leaf for _, leaf in self._leaves(tuple(map(tuple, results))))

    def names(self) -> list[str]:
        names = []
        for path, _ in self._leaves(self._like):
            number, which = path[1 : path.index("]")], path[path.index("]") + 1 :]
            word = "value" if which.startswith("[0]") else "parts"
            of = f" of result {number}" if len(self._like) > 1 else ""
            names.append(f"{word}{of}{which[3:]}")
        return names

    def _leaves(self, tree: Any) -> list[tuple[str, Any]]:
        pairs = zip(
            part_trees.leaves(tree, self._like),
            part_trees.leaves(self._like, self._like),
            strict=True,
        )
        return [leaf for leaf, (_, origin) in pairs if self._keep(origin)]


def name_of_operator(op: Any) -> str:
    return op.__name__ if isinstance(op, type) else str(op)


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
