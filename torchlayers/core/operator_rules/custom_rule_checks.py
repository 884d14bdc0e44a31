"""Calls user-defined rules (torchlayers.extend) and validates their results.

C++ (csrc/python/operators/rules.cpp) calls the functions created here for operators that have such
a rule.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from torchlayers.core.errors import TransformError, location

# The keyword arguments of a rule.
Keywords: TypeAlias = dict[str, Any]
# A requested gradient: the argument's position, the index in it if it is a list, and the sizes.
Target: TypeAlias = tuple[int, int, Sequence[int]]


def jvp_call(op: str, count: int, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a jvp rule for C++: from (primals, tangents, keywords) to (results, tangents).

    Args:
        op: the operator's name.
        count: its number of results.
        rule: the user's function.
    Returns:
        A function. The tangents that it returns are one list per result, with a tensor or None
        for each tensor of the result.
    """
    whose = f"the jvp rule of {op}"

    def call(primals: Any, tangents: Any, keywords: Keywords) -> tuple[Any, list[Any]]:
        returned = rule(primals, tangents, **keywords)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise _error(f"{whose} must return (results, tangents).")
        results, result_tangents = returned if count != 1 else ((only,) for only in returned)
        if not _are(count, results):
            raise _error(f"{whose} must return {count} results.")
        if not _are(count, result_tangents):
            raise _error(
                f"{whose} must return a tangent, or None, for each of its {count} results."
            )
        return returned[0], [
            _tangents(f"{whose} gave result {i}", *pair)
            for i, pair in enumerate(zip(results, result_tangents, strict=True))
        ]

    return call


def _tangents(whose: str, result: Any, tangents: Any) -> list[Tensor | None]:
    if tangents is None:
        return []
    if not isinstance(result, tuple | list):
        return [_tangent(whose, result, tangents)]
    if len(tangents) != len(result):
        raise _error(
            f"{whose}, a list of {len(result)} tensors, {len(tangents)} tangents: there must be as "
            "many tangents as tensors."
        )
    return [_tangent(whose, *pair) for pair in zip(result, tangents, strict=True)]


def _tangent(whose: str, result: Any, tangent: Any) -> Tensor | None:
    if tangent is None:
        return None
    if not isinstance(tangent, Tensor):
        raise _error(f"{whose} a tangent that is not a tensor.")
    if isinstance(result, Tensor) and tangent.shape != result.shape:
        raise _error(
            f"{whose} of shape {[*result.shape]} a tangent of shape {[*tangent.shape]}: the shapes "
            "must be equal."
        )
    return tangent


def vjp_call(op: str, count: int, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a vjp rule for C++: the function returns a gradient, or None, for each target.

    Args:
        op: the operator's name.
        count: its number of positional arguments.
        rule: the user's function.
    """
    whose = f"the vjp rule of {op}"

    def call(
        cotangents: list[Tensor | None],
        primals: tuple[Any, ...],
        results: list[Any],
        keywords: Keywords,
        targets: list[Target],
    ) -> list[Tensor | None]:
        values: Any = tuple(results)
        rest = iter(cotangents)
        grouped: Any = tuple(_take_like(result, rest) for result in results)
        if len(results) == 1:
            (values,), (grouped,) = values, grouped
        returned = rule(grouped, primals, values, **keywords)
        gradients = (returned,) if count == 1 and not isinstance(returned, tuple) else returned
        if not isinstance(gradients, tuple) or len(gradients) != count:
            raise _error(
                f"{whose} must return a tuple with a gradient, or None, for each of its {count} "
                "positional arguments."
            )
        return [_gradient(whose, primals, gradients, *target) for target in targets]

    return call


def _take_like(result: Any, cotangents: Iterator[Tensor | None]) -> Any:
    """Returns the next cotangents in the structure of this result."""
    if isinstance(result, list):
        return [_take_like(member, cotangents) for member in result]
    return next(cotangents) if isinstance(result, Tensor) else None


def _gradient(
    whose: str,
    primals: tuple[Any, ...],
    gradients: tuple[Any, ...],
    place: int,
    member: int,
    sizes: Sequence[int],
) -> Tensor | None:
    primal, gradient = primals[place], gradients[place]
    where = f"{whose} gave argument {place}"
    if isinstance(primal, list) and gradient is not None:
        if len(gradient) != len(primal):
            raise _error(
                f"{where}, a list of {len(primal)} tensors, {len(gradient)} gradients: there must "
                "be as many gradients as tensors."
            )
        gradient = gradient[member]
    if gradient is None:
        return None
    if not isinstance(gradient, Tensor):
        raise _error(f"{where} a gradient of type {type(gradient).__name__}, not a tensor.")
    if [*gradient.shape] != [*sizes]:
        raise _error(
            f"{where} of shape {[*sizes]} a gradient of shape {[*gradient.shape]}: the shapes must "
            "be equal."
        )
    return gradient


def _are(count: int, values: Any) -> bool:
    return isinstance(values, tuple | list) and len(values) == count


def _error(text: str) -> TransformError:
    return TransformError(f"torchlayers: {text}{location()}")
