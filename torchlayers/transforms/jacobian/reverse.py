"""jacrev: a Jacobian by a vjp for each element of the output."""

# The last overload of each is for lambdas inside of another transform, as in grad.py.
# mypy: disable-error-code="overload-cannot-match"

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Literal, cast, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchlayers import _C
from torchlayers.core import pytree, torch_func
from torchlayers.core.annotations import A, Aux, B, P, R, Transformed
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.remat.budget import budgeted
from torchlayers.transforms import chunking
from torchlayers.transforms.batching_options import BatchingOptions
from torchlayers.transforms.grad import GradSpec, by_argnums
from torchlayers.transforms.jacobian.basis import (
    as_only_row,
    fill_blocks,
    identity_rows,
    joined_rows,
    refuse_complex,
    run,
    run_local_parts,
    split_by_output,
)
from torchlayers.transforms.jacobian.call import jacobian_function
from torchlayers.transforms.jacobian.options import JacobianOptions, read_options, with_options
from torchlayers.transforms.jacobian.outputs import with_dense_outputs
from torchlayers.transforms.sparse.derivatives import sparse_jacobian
from torchlayers.transforms.vmap_dims import VmapSpec


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
@with_options(JacobianOptions)
def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    **options: Unpack[JacobianOptions],
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
        layout: with sparse, that of the result: "coo", "csr", "values" for the entries' values
            alone, in the pattern's order, or "dense" for the result without sparse.
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
    keywords: dict[str, Any] = {**options}
    preallocate = keywords.pop("_preallocate_and_copy", False)  # torch.func.jacrev's, for tests
    batching, sparse, layout, _ = read_options(jacrev, keywords)
    of_func, batching = batching.split_budget("jacrev")
    if sparse is not None:
        return sparse_jacobian(
            "jacrev",
            func,
            argnums,
            sparse,
            layout,
            batching,
            has_aux=has_aux,
            memory_budget=of_func,
        )
    batching.refuse_check("jacrev")
    return reverse_jacobian("jacrev", batching, of_func, has_aux, preallocate, func, argnums)


def reverse_jacobian(
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
        transform = partial(reverse_jacobian, api, options, memory_budget, has_aux, preallocate)
        return by_names(api, transform, func, argnums)
    within = budgeted(api, with_dense_outputs(func, has_aux), memory_budget)
    spec = GradSpec(api, within, argnums, has_aux)
    spread = options.spread(api, func)

    def traced(*args: Any) -> Any:
        options.refuse_while_tracing(api, any_chunks=False)
        chunk_size = cast(int | None, options.chunk_size)
        torch_jacrev = torch_func.jacrev(func, argnums, has_aux=has_aux, chunk_size=chunk_size)
        return torch_jacrev(*args)

    def jacobian_at(*args: Any) -> Any:
        recorded, output, aux = _C.call_vjp(spec, args, True)
        outputs, output_spec = pytree.flatten(output)
        places = pytree.positions(api, argnums, len(args))
        primals, primal_spec = pytree.flatten(pytree.pick(args, places))
        refuse_complex(api, "output", tuple(outputs))

        def reshape_jacobian(by_output: list[list[Tensor]]) -> Any:
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
            return reshape_jacobian([[as_only_row(leaf, outputs[0]) for leaf in row]])

        def pull(start: int, size: int) -> list[Tensor]:
            if not size:
                return [primal.new_zeros(0, *primal.shape) for primal in primals]
            blocks = identity_rows(outputs, start, size)
            basis = tuple(block for block in blocks if block is not None)

            def pull_rows(*rows: Tensor) -> list[Tensor]:
                return pull_one(fill_blocks(rows, blocks))

            if size == 1:
                row = pull_rows(*(block.squeeze(0) for block in basis))
                return [leaf.unsqueeze(0) for leaf in row]
            pulled: list[Tensor] = _C.call_vmap(VmapSpec(pull_rows, 0, 0, "error"), basis, {})
            return pulled

        if spread is not None:
            parts = run_local_parts(spread, pull, outputs, options, api)
            return reshape_jacobian(
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
        return reshape_jacobian(split_by_output(whole, outputs, primals))

    return jacobian_function(api, func, jacobian_at, traced, spread)
