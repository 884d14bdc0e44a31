"""The functions that jacobian and hessian return: derivatives in a mode, with a report."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from torchlayers.compiler.jacobian.decision import Decisions
from torchlayers.compiler.jacobian.differentiated import DifferentiatedFunction
from torchlayers.compiler.jacobian.mode_costs import JacobianCosts
from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import P, R_co
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.html_table import html_lines
from torchlayers.core.layer_stack import transformed

Mode: TypeAlias = Literal["auto", "forward", "reverse", "sparse"]
_MODES = ("auto", "forward", "reverse", "sparse")


class JacobianReport(NamedTuple):
    """The modes that :func:`torchlayers.jacobian` or hessian chose so far; prints as a table.

    Attributes:
        name: the function's name.
        mode: the mode that was passed.
        signatures: a :class:`JacobianCosts` for arguments of each kind; none unless mode is "auto".
        api: "jacobian" or "hessian".
    """

    name: str
    mode: str
    signatures: tuple[JacobianCosts, ...]
    api: str = "jacobian"

    def __repr__(self) -> str:
        return "\n".join([self._title(), *map(repr, self.signatures)])

    def _repr_html_(self) -> str:
        parts = [signature._repr_html_() for signature in self.signatures]
        return html_lines([self._title()]) + "".join(parts)

    def _title(self) -> str:
        if self.mode != "auto":
            return f"{self.api} of {self.name}: mode={self.mode!r}, as passed"
        count = len(self.signatures)
        return f"{self.api} of {self.name}: {count} signature{'' if count == 1 else 's'}"


class JacobianFunction(Protocol[P, R_co]):
    """The function that :func:`torchlayers.jacobian` returns, and hessian with a mode.

    Its ``report()`` says what was chosen.
    """

    @property
    def __wrapped__(self) -> Callable[..., Any]: ...

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def report(self) -> JacobianReport: ...


def check_options(api: str, mode: str, memory_budget: int | None) -> None:
    """Raises ValueError for a mode that there is not, and for a budget that is not positive."""
    if mode not in _MODES:
        raise ValueError(
            f"torchlayers: {api}: mode must be 'auto', 'forward', 'reverse' or 'sparse', got "
            f"{mode!r}."
        )
    if memory_budget is not None and memory_budget <= 0:
        raise ValueError(
            f"torchlayers: {api}: memory_budget must be a number of bytes greater than 0, got "
            f"{memory_budget}."
        )


class _InMode(NamedTuple):
    """The options of a derivative in a mode.

    Attributes:
        build: returns the derivative of a function and its argnums.
        mode, memory_budget: as for :func:`torchlayers.jacobian`.
        anchor: the user's function, by which decisions are kept.
        reports: the costs of what was decided, once there is something to decide.
    """

    build: Callable[..., DifferentiatedFunction]
    mode: Mode
    memory_budget: int | None
    anchor: Callable[..., Any]
    reports: list[Callable[[], tuple[JacobianCosts, ...]]]

    def of_numbers(self, func: Callable[..., Any], argnums: int | tuple[int, ...]) -> Any:
        differentiated = self.build(func, argnums)
        if self.mode != "auto":
            return differentiated.in_mode(self.mode)
        if tracing_state.is_tracing():
            return differentiated.in_mode(differentiated.while_tracing)
        decisions = Decisions(differentiated, self.memory_budget, self.anchor)
        self.reports[:] = [decisions.costs]
        traced = differentiated.in_mode(differentiated.while_tracing)

        def wrapper(*args: Any) -> Any:
            if tracing_state.is_tracing() or tracing_state.is_exporting():
                return traced(*args)
            return decisions.function_for(args)(*args)

        return transformed(func, wrapper)

    def signatures(self) -> tuple[JacobianCosts, ...]:
        return self.reports[0]() if self.reports else ()


def derivative_in_mode(
    api: str,
    build: Callable[..., DifferentiatedFunction],
    mode: Mode,
    memory_budget: int | None,
    func: Callable[..., Any],
    argnums: Argnums,
) -> Any:
    """The function that jacobian returns, and hessian with a mode.

    Args:
        api: which of the two.
        build: returns the derivative of a function and its argnums.
        mode, memory_budget, func, argnums: as for :func:`torchlayers.jacobian`.
    """
    in_mode = _InMode(build, mode, memory_budget, func, [])
    if are_numbers(argnums):
        wrapper = in_mode.of_numbers(func, argnums)
    else:
        wrapper = by_names(api, in_mode.of_numbers, func, argnums)
    name = pytree.name_of(func)

    def report() -> JacobianReport:
        return JacobianReport(name, mode, in_mode.signatures(), api)

    wrapper.report = report
    return wrapper
