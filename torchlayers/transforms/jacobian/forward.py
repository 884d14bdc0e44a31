"""jacfwd: a Jacobian by a jvp for each element of the input."""

# The last overload of each is for lambdas inside of another transform, as in grad.py.
# mypy: disable-error-code="overload-cannot-match"

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Literal, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.annotations import A, Aux, B, P, R, Randomness, Transformed
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.transforms import chunking, jvp_by_double_vjp
from torchlayers.transforms.batching_options import BatchingOptions
from torchlayers.transforms.jacobian.basis import (
    fill_blocks,
    identity_rows,
    joined_columns,
    require_tensors,
    run,
    run_local_parts,
    split_columns,
)
from torchlayers.transforms.jacobian.call import jacobian_function
from torchlayers.transforms.jacobian.columns import Columns
from torchlayers.transforms.jacobian.options import ForwardOptions, read_options, with_options
from torchlayers.transforms.jacobian.outputs import with_dense_outputs
from torchlayers.transforms.jvp import JvpSpec
from torchlayers.transforms.sparse.derivatives import sparse_jacobian
from torchlayers.transforms.vmap_dims import VmapSpec


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
@with_options(ForwardOptions)
def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums | None = 0,
    has_aux: bool = False,
    **options: Unpack[ForwardOptions],
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
    batching, sparse, layout, randomness = read_options(jacfwd, options)
    chunking.check_chunk_size("jacfwd", batching.chunk_size, batching.memory_budget)
    if sparse is not None:
        return sparse_jacobian(
            "jacfwd",
            func,
            argnums,
            sparse,
            layout,
            batching,
            has_aux=has_aux,
            randomness=randomness,
        )
    batching.refuse_check("jacfwd")
    return forward_jacobian("jacfwd", batching, has_aux, randomness, func, argnums)


def forward_jacobian(
    api: str,
    options: BatchingOptions,
    has_aux: bool,
    randomness: Randomness,
    func: Callable[..., Any],
    argnums: Argnums | None,
) -> Callable[..., Any]:
    """jacfwd for jacfwd and hessian, whose name is in the errors."""
    if argnums is not None and not are_numbers(argnums):
        transform = partial(forward_jacobian, api, options, has_aux, randomness)
        return by_names(api, transform, func, argnums)
    spec = JvpSpec(api, with_dense_outputs(func, has_aux), argnums, has_aux)
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
        columns = Columns(api, spec)

        def push_one(
            inputs: tuple[Any, ...], blocks: list[Tensor | None], *basis: Tensor
        ) -> tuple[Tensor, ...]:
            return columns.push(inputs, fill_blocks(basis, blocks))

        def work(start: int, size: int) -> list[Tensor]:
            blocks = identity_rows(primals, start, size)
            basis = tuple(block for block in blocks if block is not None)
            inputs = args
            if spread is not None or (options.chunk_size is None and start + size < total):
                # Only the last run may write to the caller's arguments.
                inputs = pytree.map_tensors(torch.clone, args)
            push = partial(push_one, inputs, blocks)
            pushed = _C.call_vmap(VmapSpec(push, 0, 0, randomness), basis, {})
            return columns.leaves_of(pushed)

        if spread is not None:
            parts = run_local_parts(spread, work, primals, options, api)
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
            columns.spec,
        )
        return (jacobian, columns.aux()) if has_aux else jacobian

    return jacobian_function(api, func, jacobian_at, traced, spread, randomness)
