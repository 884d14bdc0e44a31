"""Hessian-vector products, forward over reverse."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from torch import Tensor
from typing_extensions import Unpack

from torchlayers import _C
from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import Aux, Ins
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.errors import StructureError
from torchlayers.core.layer_stack import transformed
from torchlayers.distributed.mesh import MeshExecution
from torchlayers.transforms.grad import GradSpec, grad
from torchlayers.transforms.jvp import JvpSpec, jvp

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@overload
def hvp(
    func: Callable[[Unpack[Ins]], Tensor],
    primals: tuple[Unpack[Ins]],
    tangents: tuple[Unpack[Ins]],
    *,
    argnums: None = None,
    has_aux: Literal[False] = False,
    mesh: "DeviceMesh | None" = None,
) -> tuple[Unpack[Ins]]: ...
@overload
def hvp(
    func: Callable[[Unpack[Ins]], tuple[Tensor, Aux]],
    primals: tuple[Unpack[Ins]],
    tangents: tuple[Unpack[Ins]],
    *,
    argnums: None = None,
    has_aux: Literal[True],
    mesh: "DeviceMesh | None" = None,
) -> tuple[tuple[Unpack[Ins]], Aux]: ...
@overload
def hvp(
    func: Callable[[Unpack[Ins]], Any],
    primals: tuple[Unpack[Ins]],
    tangents: Any,
    *,
    argnums: Argnums | None,
    has_aux: bool = False,
    mesh: "DeviceMesh | None" = None,
) -> Any: ...
@overload
def hvp(
    func: Callable[[Unpack[Ins]], Any],
    primals: tuple[Unpack[Ins]],
    tangents: tuple[Unpack[Ins]],
    *,
    argnums: Argnums | None = None,
    has_aux: bool,
    mesh: "DeviceMesh | None" = None,
) -> Any: ...
def hvp(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: Any,
    *,
    argnums: Argnums | None = None,
    has_aux: bool = False,
    mesh: "DeviceMesh | None" = None,
) -> Any:
    """Hessian-vector product: the derivative of func's gradient along the tangents.

    It costs a few times as much as func's gradient, however many elements the primals have, and
    never materializes the Hessian.

    Args:
        func: takes the primals; returns a real scalar tensor (no dimensions), or
            ``(scalar, aux)`` with has_aux.
        primals: a tuple of tensors or pytrees of tensors: func's positional arguments.
        tangents: the vector, with the primals' structure, shapes and dtypes; with argnums, with
            those of the gradients.
        argnums: which primals to differentiate with respect to, as for :func:`grad`; None for
            all of them.
        has_aux: func returns a second value, which is passed through.
        mesh: a one-dimensional DeviceMesh. The differentiated function is then the sum of func
            over the ranks, each of which calls it on its own data; the product is with the
            Hessian of the sum, and takes one collective. Primals and tangents are the same on
            all ranks; aux is each rank's own.
    Returns:
        The Hessian of func at the primals times the tangents: a tuple with the primals'
        structure, shapes and dtypes; with argnums, with those of the gradients that :func:`grad`
        returns; with has_aux ``(product, aux)``.
    Raises:
        The errors of :func:`grad` and :func:`jvp`.
    Example:
        >>> hvp(lambda x: (x**3).sum(), (torch.tensor([1.0, 2.0]),), (torch.tensor([1.0, 0.0]),))
        (tensor([6., 0.]),)
        >>> hvp(lambda x, y: x * x * y, (torch.tensor(1.0), torch.tensor(2.0)), torch.tensor(1.0),
        ...     argnums=0)
        tensor(4.)

    Source: Pearlmutter, "Fast exact multiplication by the Hessian" (1994).
    """
    if not isinstance(primals, tuple):
        raise StructureError(
            "torchlayers: hvp: primals must be a tuple, so that func(*primals) can be called; "
            f"got {type(primals).__name__}. For one argument write (x,)."
        )
    if mesh is not None:
        return _over_ranks(mesh, func, primals, tangents, argnums, has_aux)
    if argnums is None:
        everything = tuple(range(len(primals)))
        return _product(_gradient(func, everything, has_aux), primals, tangents, has_aux)
    if not are_numbers(argnums):
        return by_names("hvp", partial(_by_some, tangents, has_aux), func, argnums)(*primals)
    return _by_some(tangents, has_aux, func, argnums)(*primals)


def _over_ranks(
    mesh: "DeviceMesh",
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: Any,
    argnums: Argnums | None,
    has_aux: bool,
) -> Any:
    spread = MeshExecution(f"hvp({pytree.name_of(func)}, mesh=...)", mesh, "local", "never")

    def local_term(primals: tuple[Any, ...], tangents: Any) -> Any:
        return hvp(func, primals, tangents, argnums=argnums, has_aux=has_aux)

    result = spread.call(local_term, (primals, tangents), captures_alike=False)
    product, *aux = result if has_aux else (result,)
    leaves, spec = pytree.flatten(product)
    total = pytree.unflatten(spread.summed(leaves), spec)
    return (total, *aux) if has_aux else total


def _by_some(
    tangents: Any, has_aux: bool, func: Callable[..., Any], argnums: int | tuple[int, ...]
) -> Callable[..., Any]:
    """Returns the product as a function of the primals."""

    def product(*primals: Any) -> Any:
        places = pytree.positions("hvp", argnums, len(primals))

        def gradient(*chosen: Any) -> Any:
            args = [*primals]
            for place, value in zip(places, chosen, strict=True):
                args[place] = value
            return _gradient(func, argnums, has_aux)(*args)

        along = (tangents,) if isinstance(argnums, int) else tangents
        return _product(gradient, pytree.pick(primals, places), along, has_aux)

    return product


def _gradient(
    func: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool
) -> Callable[..., Any]:
    """grad whose error messages name hvp."""
    if tracing_state.is_tracing():
        return grad(func, argnums, has_aux)  # type: ignore[no-any-return]
    spec = GradSpec("hvp", func, argnums, has_aux)

    def gradient(*args: Any) -> Any:
        gradients, _, aux = _C.call_grad(spec, args, {})
        return (gradients, aux) if has_aux else gradients

    return transformed(func, gradient)


def _product(
    gradient: Callable[..., Any], primals: tuple[Any, ...], tangents: Any, has_aux: bool
) -> Any:
    """jvp of the gradient; its error messages name hvp."""
    if tracing_state.is_tracing():
        _, product, *rest = jvp(gradient, primals, tangents, has_aux=has_aux)
        return (product, *rest) if has_aux else product
    _, product, aux = JvpSpec("hvp", gradient, None, has_aux).push(primals, tangents)
    return (product, aux) if has_aux else product
