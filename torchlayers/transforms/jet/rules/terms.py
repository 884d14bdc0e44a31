"""All other elementwise operators, by y' = term(x', x, y), where csrc/rules states the term.

The rules by hand of the other modules take less than half of the time of these.
"""

from typing import Any

from torch import Tensor

from torchlayers.core import pytree
from torchlayers.transforms.jet.layer import Call, Jet
from torchlayers.transforms.jet.series import Coefficient, plus, times
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.rule_table import facts, terms_of


@Jet.rule("elementwise")
def elementwise(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    call = Call(layer, op, args, kwargs)
    value = call.value
    places = [i for i, x in enumerate(args) if isinstance(x, LayerTensor) and x.parts is not None]
    if call.is_constant:
        return value
    if len(places) < len(call.series) or not set(places) <= set(facts(op)["elementwise_in"]):
        return layer.by_nested_jvps(op, *args, **kwargs)
    terms = {i: term for i in places if (term := terms_of(op).get(i)) is not None}
    if any(args[i].is_complex() and not term.is_analytic for i, term in terms.items()):
        return layer.by_nested_jvps(op, *args, **kwargs)
    outputs = pytree.leaves(value)
    coefficients: list[Coefficient] = [outputs[0]]
    # A slope that reads y has as many coefficients as y, and gives y one more.
    reads_result = any(term.reads_result for term in terms.values())
    for order in range(0 if reads_result else layer.order - 1, layer.order):
        slopes = _slopes(terms, args, kwargs, [coefficients, *outputs[1:]], order)
        coefficients = [coefficients[0], *(times(s, 1 / (k + 1)) for k, s in enumerate(slopes))]
    result = layer.result(outputs[0], coefficients[1:])
    return result if isinstance(value, Tensor) else (result, *outputs[1:])


def _slopes(
    terms: dict[int, Any], args: Any, kwargs: Any, outputs: list[Any], order: int
) -> list[Coefficient]:
    """The coefficients 0 to order of y', the sum of the terms."""
    inner = Jet(order)

    def total(args: Any, kwargs: Any, results: Any, derivatives: dict[int, Tensor]) -> Any:
        slope_sum: Coefficient = None
        for place, term in terms.items():
            slope_sum = plus(slope_sum, term(derivatives[place], tuple(args), kwargs, results))
        return slope_sum

    def series(coefficients: list[Any]) -> Tensor:
        return inner.result(coefficients[0], coefficients[1 : order + 1])

    def argument(x: Any) -> Any:
        if not isinstance(x, LayerTensor):
            return x
        return x.value if x.parts is None else series([x.value, *x.parts])

    rates = {i: _derivative(args[i]) for i in terms}
    with inner:
        arguments = [argument(x) for x in args]
        named = {name: argument(x) for name, x in kwargs.items()}
        results = [series(outputs[0]), *outputs[1:]]
        derivatives = {i: series(rate) for i, rate in rates.items()}
        slope = inner.apply(total, arguments, named, results, derivatives)
        if slope is None:
            return [None] * (order + 1)
        if not isinstance(slope, LayerTensor) or slope.layer is not inner:
            return [slope, *[None] * order]
        return [slope.value, *(slope.parts or [None] * order)]


def _derivative(x: LayerTensor) -> list[Coefficient]:
    first, *rest = x.parts
    first = x.value.new_zeros(x.shape) if first is None else first
    return [first, *(times(c, k) for k, c in enumerate(rest, 2))]
