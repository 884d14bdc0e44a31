"""jacobian and costs: a Jacobian in the mode that costs least, and what each mode costs."""

# The last overload is for lambdas inside of another transform, as in grad.py.
# mypy: disable-error-code="overload-cannot-match"

from collections.abc import Callable
from typing import Any, Concatenate, Literal, NamedTuple, Protocol, TypeAlias, overload

from torch import Tensor

from torchlayers.compiler.jacobian.decision import Decisions, decide, in_mode
from torchlayers.compiler.jacobian.mode_costs import DifferentiatedFunction, JacobianCosts
from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import A, Aux, B, P, R, R_co
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.errors import ArgnumsError
from torchlayers.core.function_checks import check_function
from torchlayers.core.layer_stack import transformed
from torchlayers.fx.operator_tracer import records_operators

__all__ = ["costs", "jacobian"]

Mode: TypeAlias = Literal["auto", "forward", "reverse", "sparse"]
_MODES = ("auto", "forward", "reverse", "sparse")


class JacobianReport(NamedTuple):
    """The modes that a function of :func:`torchlayers.jacobian` chose so far; prints as a table.

    Attributes:
        name: the function's name.
        mode: the mode that was passed.
        signatures: a :class:`JacobianCosts` for arguments of each kind; none unless mode is "auto".
    """

    name: str
    mode: str
    signatures: tuple[JacobianCosts, ...]

    def __repr__(self) -> str:
        if self.mode != "auto":
            return f"jacobian of {self.name}: mode={self.mode!r}, as passed"
        count = len(self.signatures)
        title = f"jacobian of {self.name}: {count} signature{'' if count == 1 else 's'}"
        return "\n".join([title, *map(repr, self.signatures)])


class JacobianFunction(Protocol[P, R_co]):
    """The function that :func:`torchlayers.jacobian` returns; ``report()`` says what was chosen."""

    @property
    def __wrapped__(self) -> Callable[..., Any]: ...

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def report(self) -> JacobianReport: ...


@overload
def jacobian(
    func: Callable[Concatenate[A, P], Tensor],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[False] = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[A, P], A]: ...
@overload
def jacobian(
    func: Callable[Concatenate[Tensor, P], R],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[False] = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[Tensor, P], R]: ...
@overload
def jacobian(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: Literal[1],
    *,
    has_aux: Literal[False] = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[A, B, P], B]: ...
@overload
def jacobian(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: tuple[Literal[0], Literal[1]],
    *,
    has_aux: Literal[False] = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[A, B, P], tuple[A, B]]: ...
@overload
def jacobian(
    func: Callable[Concatenate[A, P], tuple[Tensor, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[A, P], tuple[A, Aux]]: ...
@overload
def jacobian(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[P, Any]: ...
@overload
def jacobian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> Any: ...
def jacobian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> Any:
    """Jacobian in the mode that costs least: forward, reverse or sparse.

    At the first call with arguments of some shapes and dtypes, the Jacobian is captured in each
    mode, as :func:`torchlayers.costs` does it, without computing anything, and the one with the
    least estimate is kept for all such calls. Sparse mode detects the sparsity pattern, for which
    func runs once, and is used where all that the pattern depends on is as it was then: the other
    arguments, the captured tensors and the Python state that func read.

    Args:
        func, argnums, has_aux: as for :func:`jacrev`.
        mode: "auto"; or "forward" for :func:`jacfwd`, "reverse" for :func:`jacrev`, "sparse" for
            ``jacfwd(func, sparse=True, layout="dense")``.
        memory_budget: bytes that a call may take besides the arguments, by its estimate; if it
            takes more, the products run in chunks. None for half of the free memory of the device.
    Returns:
        A function with func's arguments that returns the dense Jacobian, as :func:`jacrev` does: of
        shape ``(*O, *I)`` for an output of shape O and an argument of shape I, with has_aux
        ``(jacobian, aux)``. Its method ``report()`` says which mode was chosen, and why. Inside
        torch.compile and torch.export the mode is reverse; inside :func:`torchlayers.compile` the
        one with fewer products of forward and reverse, unless one was kept. They also decide where
        func can't be captured.
    Raises:
        ValueError: mode is none of these, or memory_budget is not positive.
        DtypeError, NotTensorError, OutputError, ArgnumsError: as for :func:`jacrev`.
        CallError: func is not a function.
    Example:
        >>> f = torchlayers.jacobian(lambda x: torch.stack([x.sin(), x.cos()]))
        >>> f(torch.tensor(0.0))
        tensor([1., -0.])
        >>> f.report().signatures[0].mode
        'forward'

    Source: the choice by counted costs is ours; the modes are those of Griewank and Walther,
        "Evaluating Derivatives" (2008), chapters 3 and 8.
    """
    check_function("jacobian", "func", func)
    _check_options(mode, memory_budget)
    return _jacobian(func, has_aux, mode, memory_budget, func, argnums)


def _check_options(mode: str, memory_budget: int | None) -> None:
    if mode not in _MODES:
        raise ValueError(
            "torchlayers: jacobian: mode must be 'auto', 'forward', 'reverse' or 'sparse', got "
            f"{mode!r}."
        )
    if memory_budget is not None and memory_budget <= 0:
        raise ValueError(
            "torchlayers: jacobian: memory_budget must be a number of bytes greater than 0, got "
            f"{memory_budget}."
        )


def _jacobian(
    anchor: Callable[..., Any],
    has_aux: bool,
    mode: Mode,
    memory_budget: int | None,
    func: Callable[..., Any],
    argnums: Argnums,
) -> Any:
    reports: list[Callable[[], tuple[JacobianCosts, ...]]] = []
    if not are_numbers(argnums):
        last: list[Any] = []

        def of_numbers(of_parts: Callable[..., Any], places: Any) -> Any:
            last[:] = [_jacobian(anchor, has_aux, mode, memory_budget, of_parts, places)]
            return last[0]

        wrapper = by_names("jacobian", of_numbers, func, argnums)
        reports.append(lambda: last[0].report().signatures if last else ())
    else:
        differentiated = DifferentiatedFunction(func, argnums, has_aux)
        wrapper = _by_numbers(differentiated, anchor, mode, memory_budget, reports)
    name = pytree.name_of(anchor)

    def report() -> JacobianReport:
        return JacobianReport(name, mode, reports[0]() if reports else ())

    wrapper.report = report  # type: ignore[attr-defined]
    return wrapper


def _by_numbers(
    differentiated: DifferentiatedFunction,
    anchor: Callable[..., Any],
    mode: Mode,
    memory_budget: int | None,
    reports: list[Callable[[], tuple[JacobianCosts, ...]]],
) -> Callable[..., Any]:
    if mode != "auto":
        return in_mode(differentiated, mode)
    decisions = Decisions(differentiated, memory_budget, anchor)
    reports.append(decisions.costs)
    traced = differentiated.reverse()

    def wrapper(*args: Any) -> Any:
        if tracing_state.is_tracing() or tracing_state.is_exporting():
            return traced(*args)
        return decisions.function_for(args, records_operators())(*args)

    return transformed(differentiated.func, wrapper)


def costs(
    f: Callable[..., Any],
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    memory_budget: int | None = None,
) -> JacobianCosts:
    """What the Jacobian of f costs in forward, reverse and sparse mode, without computing it.

    Each mode is captured on tensors without values, and the operators, floating-point operations,
    bytes and peak memory of its graph are counted. For the sparse mode f runs once, to detect the
    pattern.

    Args:
        f: as for :func:`jacobian`.
        args: its arguments; a :class:`ShapeDtypeStruct` may stand for a tensor, and the sparse mode
            is left out then.
        argnums, has_aux, memory_budget: as for :func:`jacobian`; argnums without names.
    Returns:
        A :class:`JacobianCosts`, which prints as a table. It has ``modes``, with the costs of each
        mode or why it is refused; ``mode`` and ``chunk_size``, which :func:`jacobian` would choose;
        and ``why``.
    Raises:
        ValueError: memory_budget is not positive.
        DtypeError, NotTensorError, ArgnumsError: as for :func:`jacrev`.
        CallError: f is not a function.
    Example:
        >>> x = torchlayers.ShapeDtypeStruct((1000,))
        >>> result = torchlayers.costs(lambda x: (x * x).sum(), x)
        >>> result.mode, [mode.products for mode in result.modes[:2]]
        ('reverse', [1000, 1])

    Source: the counts are those of a graph's operators, as in torch.utils.flop_counter.
    """
    check_function("costs", "f", f)
    _check_options("auto", memory_budget)
    if not are_numbers(argnums):
        raise ArgnumsError(
            "torchlayers: costs: argnums must be an int or a tuple of ints, without names. Pass "
            "the chosen entries as an argument of their own."
        )
    return decide(DifferentiatedFunction(f, argnums, has_aux), args, memory_budget).costs
