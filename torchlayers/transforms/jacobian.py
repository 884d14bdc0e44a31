"""Jacobians and Hessians: jacrev, jacfwd and hessian.

A Jacobian is a vjp for every element of the output (jacrev) or a jvp for every element of
the input (jacfwd), all of them at once under vmap. The cotangents, or tangents, are the rows
of an identity matrix, split where one tensor ends and the next begins:

    outputs of 2 and 1 elements:   1 0 | 0     one chunk of rows is built at a time
                                   0 1 | 0
                                   0 0 | 1
"""

# The last overload of each is for lambdas inside of another transform, as in grad.py.
# mypy: disable-error-code="overload-cannot-match"

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, cast, overload

import torch
from torch import Tensor
from typing_extensions import TypedDict, Unpack

from torchlayers import _C
from torchlayers.core import pytree, torch_func, tracing_state
from torchlayers.core.annotations import A, Aux, B, P, R, Randomness, Transformed
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.jax_names import refuse_keywords, without_others
from torchlayers.core.layer_stack import transformed
from torchlayers.distributed.mesh import Check, MeshExecution, Out
from torchlayers.remat.budget import budgeted
from torchlayers.transforms import chunking, jvp_by_double_vjp
from torchlayers.transforms.batching_options import BatchingOptions
from torchlayers.transforms.chunking import ChunkSize
from torchlayers.transforms.grad import GradSpec, by_argnums
from torchlayers.transforms.jacobian_basis import (
    as_only_row,
    at_their_places,
    identity_rows,
    joined_columns,
    joined_rows,
    own_parts,
    refuse_complex,
    require_tensors,
    run,
    split_by_output,
    split_columns,
)
from torchlayers.transforms.jvp import JvpSpec
from torchlayers.transforms.sparse.assembly import Layout
from torchlayers.transforms.sparse.derivatives import Sparse, sparse_hessian, sparse_jacobian
from torchlayers.transforms.vmap_dims import VmapSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class JacobianOptions(TypedDict, total=False, closed=True):
    """The options of jacrev that leave the types of its results as they are."""

    chunk_size: ChunkSize
    memory_budget: int | float | None
    progress: bool
    mesh: "DeviceMesh | None"
    out: Out
    check: Check | bool
    sparse: Sparse | None
    layout: Layout


class ForwardOptions(TypedDict, total=False, closed=True):
    """The options of jacfwd that leave the types of its results as they are."""

    randomness: Randomness
    chunk_size: ChunkSize
    memory_budget: int | None
    progress: bool
    mesh: "DeviceMesh | None"
    out: Out
    check: Check | bool
    sparse: Sparse | None
    layout: Layout


@overload
def jacrev(
    func: Callable[Concatenate[A, P], Tensor],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[False] = False,
    **options: Unpack[JacobianOptions],
) -> Callable[Concatenate[A, P], A]: ...
@overload
def jacrev(
    func: Callable[Concatenate[Tensor, P], R],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[False] = False,
    **options: Unpack[JacobianOptions],
) -> Transformed[Concatenate[Tensor, P], R]: ...
@overload
def jacrev(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: Literal[1],
    *,
    has_aux: Literal[False] = False,
    **options: Unpack[JacobianOptions],
) -> Callable[Concatenate[A, B, P], B]: ...
@overload
def jacrev(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: tuple[Literal[0], Literal[1]],
    *,
    has_aux: Literal[False] = False,
    **options: Unpack[JacobianOptions],
) -> Callable[Concatenate[A, B, P], tuple[A, B]]: ...
@overload
def jacrev(
    func: Callable[Concatenate[A, P], tuple[Tensor, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    **options: Unpack[JacobianOptions],
) -> Callable[Concatenate[A, P], tuple[A, Aux]]: ...
@overload
def jacrev(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    **options: Unpack[JacobianOptions],
) -> Transformed[P, Any]: ...
@overload
def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    **options: Unpack[JacobianOptions],
) -> Any: ...
@without_others
def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: ChunkSize = None,
    memory_budget: int | float | None = None,
    progress: bool = False,
    mesh: "DeviceMesh | None" = None,
    out: Out = "dtensor",
    check: Check | bool = "first",
    sparse: Sparse | None = None,
    layout: Layout = "coo",
    **others: NoReturn,
) -> Callable[..., Any]:
    """Jacobian by reverse mode: cheaper if func has fewer outputs than inputs.

    Args:
        func: takes tensors and pytrees of tensors; returns a tensor or a pytree of tensors,
            or ``(output, aux)`` with has_aux. All of them real.
        argnums: which positional arguments to differentiate with respect to (negative ints count
            from the end); or which entries of a dict argument: :func:`torchlayers.names`.
        has_aux: func returns a second value, which is passed through.
        chunk_size: how many rows of the Jacobian to compute at a time, to save memory: an int,
            None for all at once, or "auto" for as many as the memory budget allows. With 1, the
            rows are computed in a plain loop, without vmap and its limits.
        memory_budget: a limit on func's residuals, as for :func:`torchlayers.grad`; with "auto",
            the peak memory of one chunk in bytes, not counting rows already computed; None is then
            half of the free memory of the device.
        progress: show a progress bar over the chunks (needs tqdm).
        mesh: spreads the rows over the ranks of a one-dimensional DeviceMesh, all of which call it
            with the same arguments: each computes its part of an output's first dimension, as
            torch.chunk splits it. The row of a scalar output is computed by all.
        out, check: with mesh, as for :func:`torchlayers.vmap`.
        sparse: compute only the entries that can be nonzero, by one vjp for each color of the rows
            (docs/sparse.md). True detects the pattern at the first call, and again for arguments of
            other shapes, or for other values of those that are not differentiated; a
            :class:`torchlayers.SparsityPattern`, mask or sparse matrix gives it; a
            :class:`torchlayers.Coloring` also decides between vjps and jvps. With check=True, one
            random product is compared with the dense one.
        layout: with sparse, that of the result: "coo", "csr", or "values" for the entries' values
            alone, in the pattern's order.
    Returns:
        A function with func's arguments. For one output of shape O and one chosen argument of
        shape I the Jacobian has shape ``(*O, *I)``; for pytrees, it has the structure of func's
        output, with the argument's structure in each leaf, and a tuple of those if argnums is a
        tuple. With has_aux ``(jacobian, aux)``. With sparse, each Jacobian is a matrix of shape
        ``(elements of O, elements of I)``.
    Raises:
        DtypeError: an input or output is complex.
        StructureError: the pattern does not have the Jacobian's shape, or lacks an entry (check).
        TransformError: check is True without sparse.
        TypeError: chunk_size is neither an int, nor None, nor "auto".
        ValueError: chunk_size or memory_budget is not positive.
        OutputError, NotTensorError, ArgnumsError: as for :func:`torchlayers.grad`.
    Example:
        >>> jacrev(torch.sin)(torch.zeros(2))
        tensor([[1., 0.],
                [0., 1.]])
        >>> jacrev(torch.sin, sparse=True)(torch.zeros(2))
        tensor(indices=tensor([[0, 1],
                               [0, 1]]),
               values=tensor([1., 1.]),
               size=(2, 2), nnz=2, layout=torch.sparse_coo)

    Source: torch.func.jacrev.
    """
    preallocate: bool = others.pop("_preallocate_and_copy", False)  # torch.func.jacrev's, for tests
    if others:
        refuse_keywords(jacrev, others)
    of_func, of_chunk = chunking.split_budget("jacrev", chunk_size, memory_budget)
    options = BatchingOptions(chunk_size, of_chunk, progress, mesh, out, check)
    if sparse is not None and sparse is not False:
        return sparse_jacobian(
            "jacrev",
            func,
            argnums,
            sparse,
            layout,
            options,
            has_aux=has_aux,
            memory_budget=of_func,
        )
    options.refuse_check("jacrev")
    transform = partial(_jacrev, "jacrev", options, of_func, has_aux, preallocate)
    return transform(func, argnums)


def _jacrev(
    api: str,
    options: BatchingOptions,
    memory_budget: int | float | None,
    has_aux: bool,
    preallocate: bool,
    func: Callable[..., Any],
    argnums: Argnums,
) -> Callable[..., Any]:
    """jacrev for jacrev and hessian, whose name is in the errors; memory_budget is func's."""
    if not are_numbers(argnums):
        transform = partial(_jacrev, api, options, memory_budget, has_aux, preallocate)
        return by_names(api, transform, func, argnums)
    given = GradSpec(api, budgeted(api, func, memory_budget), argnums, has_aux)
    spread = options.spread(api, func)

    def traced(*args: Any) -> Any:
        options.refuse_while_tracing(api, any_chunks=False)
        chunk_size = cast(int | None, options.chunk_size)
        theirs = torch_func.jacrev(func, argnums, has_aux=has_aux, chunk_size=chunk_size)
        return theirs(*args)

    def jacobian_at(*args: Any) -> Any:
        recorded, output, aux = _C.call_vjp(given, args, True)
        outputs, output_spec = pytree.flatten(output)
        places = pytree.positions(api, argnums, len(args))
        primals, primal_spec = pytree.flatten(pytree.pick(args, places))
        refuse_complex(api, "output", tuple(outputs))

        def shaped(by_output: list[list[Tensor]]) -> Any:
            """Returns the Jacobian from the leaves for each output, one per primal."""
            rows = [
                by_argnums(pytree.unflatten(leaves, primal_spec), argnums) for leaves in by_output
            ]
            jacobian = pytree.unflatten(rows, output_spec)
            return (jacobian, aux) if has_aux else jacobian

        def pull_one(cotangents: list[Tensor | None]) -> list[Tensor]:
            return _C.call_vjp_of_leaves(recorded, cotangents, torch.is_grad_enabled())

        if (
            not options.progress
            and spread is None
            and len(outputs) == 1
            and outputs[0].numel() == 1
        ):
            row = pull_one([torch.ones_like(outputs[0])])
            return shaped([[as_only_row(leaf, outputs[0]) for leaf in row]])

        def pull(start: int, size: int) -> list[Tensor]:
            if not size:
                return [primal.new_zeros(0, *primal.shape) for primal in primals]
            blocks = identity_rows(outputs, start, size)
            basis = tuple(block for block in blocks if block is not None)

            def pull_rows(*rows: Tensor) -> list[Tensor]:
                return pull_one(at_their_places(rows, blocks))

            if size == 1:
                row = pull_rows(*(block.squeeze(0) for block in basis))
                return [leaf.unsqueeze(0) for leaf in row]
            pulled: list[Tensor] = _C.call_vmap(VmapSpec(pull_rows, 0, 0, "error"), basis, {})
            return pulled

        if spread is not None:
            parts = own_parts(spread, pull, outputs, options, api)
            return shaped(
                [
                    [
                        joined_rows(spread, rows, output, primal)
                        for rows, primal in zip(part, primals, strict=True)
                    ]
                    for part, output in zip(parts, outputs, strict=True)
                ]
            )

        if preallocate and options.chunk_size is not None:
            rows = sum(leaf.numel() for leaf in outputs)
            whole = [primal.new_zeros(rows, *primal.shape) for primal in primals]

            def work(start: int, size: int) -> list[Tensor]:
                for into, part in zip(whole, pull(start, size), strict=True):
                    into[start : start + size].copy_(part)
                return []
        else:
            whole, work = [], pull

        parts = run(work, outputs, options, api)
        whole = whole or chunking.join_leaves(parts, torch.cat)
        return shaped(split_by_output(whole, outputs, primals))

    return _transformed(api, func, jacobian_at, traced, spread)


@overload
def jacfwd(
    func: Callable[Concatenate[A, P], Tensor],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    **options: Unpack[ForwardOptions],
) -> Callable[Concatenate[A, P], A]: ...
@overload
def jacfwd(
    func: Callable[Concatenate[Tensor, P], R],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    **options: Unpack[ForwardOptions],
) -> Transformed[Concatenate[Tensor, P], R]: ...
@overload
def jacfwd(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: Literal[1],
    has_aux: Literal[False] = False,
    **options: Unpack[ForwardOptions],
) -> Callable[Concatenate[A, B, P], B]: ...
@overload
def jacfwd(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: tuple[Literal[0], Literal[1]],
    has_aux: Literal[False] = False,
    **options: Unpack[ForwardOptions],
) -> Callable[Concatenate[A, B, P], tuple[A, B]]: ...
@overload
def jacfwd(
    func: Callable[Concatenate[A, P], tuple[Tensor, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    **options: Unpack[ForwardOptions],
) -> Callable[Concatenate[A, P], tuple[A, Aux]]: ...
@overload
def jacfwd(
    func: Callable[P, Any],
    argnums: Argnums | None = 0,
    has_aux: bool = False,
    **options: Unpack[ForwardOptions],
) -> Transformed[P, Any]: ...
@overload
def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums | None = 0,
    has_aux: bool = False,
    **options: Unpack[ForwardOptions],
) -> Any: ...
@without_others
def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums | None = 0,
    has_aux: bool = False,
    *,
    randomness: Randomness = "error",
    chunk_size: ChunkSize = None,
    memory_budget: int | None = None,
    progress: bool = False,
    mesh: "DeviceMesh | None" = None,
    out: Out = "dtensor",
    check: Check | bool = "first",
    sparse: Sparse | None = None,
    layout: Layout = "coo",
    **others: NoReturn,
) -> Callable[..., Any]:
    """Jacobian by forward mode: cheaper if func has fewer inputs than outputs.

    Args:
        func, argnums, has_aux: as for :func:`jacrev`; argnums may be None for all arguments.
        randomness: how random operators behave, as for :func:`torchlayers.vmap`.
        chunk_size: how many columns of the Jacobian to compute at a time, to save memory: an int,
            None for all at once, or "auto" for as many as the memory budget allows.
        memory_budget: with "auto", as for :func:`jacrev`.
        progress: as for :func:`jacrev`.
        mesh, out, check: as for :func:`jacrev`, but the columns are spread, along an argument's
            first dimension.
        sparse, layout: as for :func:`jacrev`, by one jvp for each color of the columns.
    Returns:
        The same as :func:`jacrev`.
    Raises:
        DtypeError: an input or output is complex.
        TypeError: chunk_size is neither an int, nor None, nor "auto".
        ValueError: chunk_size or memory_budget is not positive.
        NotTensorError: a chosen argument holds something other than tensors.
        OutputError, ArgnumsError, TransformError: as for :func:`jacrev`.
    Example:
        >>> jacfwd(torch.sin)(torch.zeros(2))
        tensor([[1., 0.],
                [0., 1.]])

    Source: torch.func.jacfwd.
    """
    if others:
        refuse_keywords(jacfwd, others)
    chunking.check_chunk_size("jacfwd", chunk_size, memory_budget)
    options = BatchingOptions(chunk_size, memory_budget, progress, mesh, out, check)
    if sparse is not None and sparse is not False:
        return sparse_jacobian(
            "jacfwd",
            func,
            argnums,
            sparse,
            layout,
            options,
            has_aux=has_aux,
            randomness=randomness,
        )
    options.refuse_check("jacfwd")
    return _jacfwd("jacfwd", options, has_aux, randomness, func, argnums)


def _jacfwd(
    api: str,
    options: BatchingOptions,
    has_aux: bool,
    randomness: Randomness,
    func: Callable[..., Any],
    argnums: Argnums | None,
) -> Callable[..., Any]:
    """jacfwd for jacfwd and hessian, whose name is in the errors."""
    if argnums is not None and not are_numbers(argnums):
        transform = partial(_jacfwd, api, options, has_aux, randomness)
        return by_names(api, transform, func, argnums)
    given = JvpSpec(api, func, argnums, has_aux)
    spread = options.spread(api, func)

    def traced(*args: Any) -> Any:
        options.refuse_while_tracing(api, any_chunks=True)
        places = tuple(range(len(args))) if argnums is None else argnums
        return jvp_by_double_vjp.jacfwd(func, places, has_aux, randomness)(*args)

    def jacobian_at(*args: Any) -> Any:
        everything = tuple(range(len(args)))
        places = everything if argnums is None else pytree.positions(api, argnums, len(args))
        primals, primal_spec = pytree.flatten(pytree.pick(args, places))
        require_tensors(api, primals, args, None if argnums is None else places)
        total = sum(leaf.numel() for leaf in primals)
        seen: dict[str, Any] = {}

        def push_one(
            inputs: tuple[Any, ...], blocks: list[Tensor | None], *columns: Tensor
        ) -> tuple[Tensor, ...]:
            tangents = at_their_places(columns, blocks)
            output, output_tangents, aux = given.push(inputs, tangents, are_leaves=True)
            refuse_complex(api, "output", output)
            leaves, seen["spec"] = pytree.flatten(output_tangents)
            # aux is the same for every column, and may hold things other than tensors.
            seen["aux"], seen["aux_spec"] = pytree.flatten(aux) if has_aux else ([], None)
            return *leaves, *(leaf for leaf in seen["aux"] if isinstance(leaf, Tensor))

        def work(start: int, size: int) -> list[Tensor]:
            blocks = identity_rows(primals, start, size)
            basis = tuple(block for block in blocks if block is not None)
            inputs = args
            if spread is not None or (options.chunk_size is None and start + size < total):
                # Only the last run may write to the caller's arguments.
                inputs = pytree.map_tensors(torch.clone, args)
            push = partial(push_one, inputs, blocks)
            pushed = _C.call_vmap(VmapSpec(push, 0, 0, randomness), basis, {})
            count = seen["spec"].num_leaves
            leaves, values = list(pushed[:count]), iter(leaf[0] for leaf in pushed[count:])
            seen["aux"] = [
                next(values) if isinstance(leaf, Tensor) else leaf for leaf in seen["aux"]
            ]
            return leaves

        if spread is not None:
            parts = own_parts(spread, work, primals, options, api)
            by_output = [
                [
                    joined_columns(spread, part, primal)
                    for part, primal in zip(of_output, primals, strict=True)
                ]
                for of_output in zip(*parts, strict=True)
            ]
        else:
            at_once = randomness != "error"  # otherwise each part would draw its own numbers
            parts = run(work, primals, options, api, at_once)
            whole = [column.movedim(0, -1) for column in chunking.join_leaves(parts, torch.cat)]
            by_output = [split_columns(columns_of, primals) for columns_of in whole]
        single = isinstance(argnums, int)
        jacobian = pytree.unflatten(
            [
                inner[0] if single else inner
                for inner in (pytree.unflatten(row, primal_spec) for row in by_output)
            ],
            seen["spec"],
        )
        return (jacobian, pytree.unflatten(seen["aux"], seen["aux_spec"])) if has_aux else jacobian

    return _transformed(api, func, jacobian_at, traced, spread, randomness)


def _transformed(
    api: str,
    func: Callable[..., Any],
    jacobian_at: Callable[..., Any],
    traced: Callable[..., Any],
    spread: MeshExecution | None,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Returns the function that computes the Jacobian, by `traced` while torch.compile traces."""

    def wrapper(*args: Any) -> Any:
        if tracing_state.is_tracing():
            tracing_state.refuse_strict_export(api)
            return traced(*args)
        if tracing_state.is_exporting():
            return tracing_state.call_exported(wrapper, *args)
        refuse_complex(api, "argument", args)
        if spread is not None:
            return spread.call(jacobian_at, args, randomness)
        return jacobian_at(*args)

    return transformed(func, wrapper)


@overload
def hessian(
    func: Callable[Concatenate[Tensor, P], Tensor],
    argnums: Literal[0] = 0,
    **options: Unpack[JacobianOptions],
) -> Callable[Concatenate[Tensor, P], Tensor]: ...
@overload
def hessian(
    func: Callable[Concatenate[A, Tensor, P], Tensor],
    argnums: Literal[1],
    **options: Unpack[JacobianOptions],
) -> Callable[Concatenate[A, Tensor, P], Tensor]: ...
@overload
def hessian(
    func: Callable[Concatenate[Tensor, Tensor, P], Tensor],
    argnums: tuple[Literal[0], Literal[1]],
    **options: Unpack[JacobianOptions],
) -> Callable[
    Concatenate[Tensor, Tensor, P], tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
]: ...
@overload
def hessian(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    **options: Unpack[JacobianOptions],
) -> Transformed[P, Any]: ...
@overload
def hessian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    **options: Unpack[JacobianOptions],
) -> Any: ...
@without_others
def hessian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    chunk_size: ChunkSize = None,
    memory_budget: int | float | None = None,
    progress: bool = False,
    mesh: "DeviceMesh | None" = None,
    out: Out = "dtensor",
    check: Check | bool = "first",
    sparse: Sparse | None = None,
    layout: Layout = "coo",
    **others: NoReturn,
) -> Callable[..., Any]:
    """Hessian by forward over reverse mode: ``jacfwd(jacrev(func))``.

    Args:
        func, argnums: as for :func:`jacrev`.
        chunk_size: how many columns of the Hessian to compute at a time, to save memory: an int,
            None for all at once, or "auto" for as many as the memory budget allows.
        memory_budget, progress: as for :func:`jacrev`.
        mesh, out, check: as for :func:`jacfwd`.
        sparse, layout: as for :func:`jacrev`, by one Hessian-vector product for each color of a
            star coloring, or of the given one ("star", "acyclic" or "columns"). The output must be
            a scalar.
    Returns:
        A function with func's arguments. For an output of shape O and one chosen argument of
        shape I the Hessian has shape ``(*O, *I, *I)``; with argnums a tuple, a tuple of tuples.
        With sparse, a matrix of shape ``(elements of I, elements of I)``, or tuples of those.
    Raises:
        The errors of :func:`jacfwd` and :func:`jacrev`.
    Example:
        >>> hessian(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])

    Source: torch.func.hessian; forward over reverse as in Griewank and Walther, "Evaluating
        Derivatives" (2008), chapter 5.
    """
    if others:
        refuse_keywords(hessian, others)
    of_func, of_chunk = chunking.split_budget("hessian", chunk_size, memory_budget)
    options = BatchingOptions(chunk_size, of_chunk, progress, mesh, out, check)
    if sparse is not None and sparse is not False:
        return sparse_hessian(func, argnums, sparse, layout, options, of_func)
    options.refuse_check("hessian")
    return _hessian(options, of_func, func, argnums)


def _hessian(
    options: BatchingOptions,
    memory_budget: int | float | None,
    func: Callable[..., Any],
    argnums: Argnums,
) -> Callable[..., Any]:
    if not are_numbers(argnums):
        return by_names("hessian", partial(_hessian, options, memory_budget), func, argnums)
    gradient = _jacrev("hessian", BatchingOptions(), memory_budget, False, False, func, argnums)
    forward_over_reverse = _jacfwd("hessian", options, False, "error", gradient, argnums)

    def wrapper(*args: Any) -> Any:
        if tracing_state.is_tracing():
            tracing_state.refuse_strict_export("hessian")
            options.refuse_while_tracing("hessian", any_chunks=True)
            theirs = torch_func.jacrev(func, argnums)
            return jvp_by_double_vjp.jacfwd(theirs, argnums, False, "error")(*args)
        return forward_over_reverse(*args)

    return transformed(func, wrapper)
