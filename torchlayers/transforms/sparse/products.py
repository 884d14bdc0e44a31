"""Products of a Jacobian with seeds: jvps for colours of columns, vjps for colours of rows."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.annotations import Randomness
from torchlayers.core.errors import StructureError
from torchlayers.core.operators import aten
from torchlayers.transforms import chunking
from torchlayers.transforms.grad import GradSpec
from torchlayers.transforms.jacobian.basis import refuse_complex, require_tensors
from torchlayers.transforms.jacobian.columns import Columns
from torchlayers.transforms.jvp import JvpSpec
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.vmap_dims import VmapSpec

_COLUMNS = "columns (elements of the differentiated arguments)"
_ROWS = "rows (elements of the outputs)"


class Products(NamedTuple):
    """The products of a function's Jacobian with seeds.

    Attributes:
        tensors: of shape (colours, size), one for each leaf of the outputs or of the inputs;
            in order of what they are read by: products by columns, then by rows.
        outputs, spec: the function's outputs (or their tangents), and their structure.
        aux: its second result.
    """

    tensors: list[list[Tensor]]
    outputs: list[Tensor]
    spec: pytree.TreeSpec
    aux: Any

    def joined(self, more: "Products") -> "Products":
        return self._replace(tensors=self.tensors + more.tensors)

    def flat(self) -> Tensor:
        """All products one after the other, in one dimension."""
        lines = [
            leaves[0].reshape(-1) if len(leaves) == 1 else torch.cat(_promoted(leaves), 1).flatten()
            for leaves in self.tensors
        ]
        return lines[0] if len(lines) == 1 else torch.cat(_promoted(lines))


def _promoted(leaves: list[Tensor]) -> list[Tensor]:
    dtype = leaves[0].dtype
    for leaf in leaves:
        dtype = torch.promote_types(dtype, leaf.dtype)
    return [leaf.to(dtype) for leaf in leaves]


def as_constant(tensor: Tensor) -> Tensor:
    """A tensor that nobody else writes to, which a capture may treat as a constant."""
    lifted: Tensor = aten.lift_fresh.default(tensor)
    return lifted


def seeds(colors: Tensor, start: int, size: int, leaves: Sequence[Tensor]) -> list[Tensor]:
    """For each leaf a tensor of shape (size, *its shape): 1 where the element has the colour."""
    with bookkeeping():
        wanted = torch.arange(start, start + size)[:, None]
        masks = torch.split(colors == wanted, [leaf.numel() for leaf in leaves], dim=1)
    return [
        as_constant(mask).to(device=leaf.device, dtype=leaf.dtype).reshape(size, *leaf.shape)
        for mask, leaf in zip(masks, leaves, strict=True)
    ]


def _for_each(
    product: Callable[..., Any], seeds: tuple[Tensor, ...], randomness: Randomness
) -> list[Tensor]:
    """The products with all seeds, one after the other along the first dimension."""
    if len(seeds[0]) == 1:  # without vmap and its limits
        return [seed.unsqueeze(0) for seed in product(*(seed.squeeze(0) for seed in seeds))]
    return list(_C.call_vmap(VmapSpec(product, 0, 0, randomness), seeds, {}))


def _flat(products: Tensor) -> Tensor:
    """A row for each product, also of a tensor without dimensions."""
    return products.flatten(1) if products.dim() > 1 else products[:, None]


def products_by_columns(
    api: str,
    run: Callable[..., list[list[Tensor]]],
    func: Callable[..., Any],
    argnums: int | tuple[int, ...],
    args: tuple[Any, ...],
    has_aux: bool,
    colors: Tensor,
    count: int,
    randomness: Randomness,
) -> Products:
    """One jvp for each colour of columns."""
    jvp_spec = JvpSpec(api, func, argnums, has_aux)
    places = pytree.positions(api, argnums, len(args))
    primals, _ = pytree.flatten(pytree.pick(args, places))
    require_tensors(api, primals, args, places)
    _check_length(_COLUMNS, api, primals, colors)
    columns = Columns(api, jvp_spec)
    outputs: list[Tensor] = []

    def push(*tangents: Tensor) -> tuple[Tensor, ...]:
        return columns.push(args, [*tangents])

    def work(start: int, size: int) -> list[Tensor]:
        tangents = tuple(seeds(colors, start, size, primals))
        leaves = columns.leaves_of(_for_each(push, tangents, randomness))
        outputs[:] = [leaf[0] for leaf in leaves]
        return [_flat(leaf) for leaf in leaves]

    # Without colours, one product of zeros finds the structure of the output.
    parts = run(work, max(count, 1), primals[0].device)
    tensors = chunking.join_leaves(parts, torch.cat)
    aux = columns.aux() if has_aux else None
    return Products([tensors], outputs, columns.spec, aux)


def products_by_rows(
    api: str,
    run: Callable[..., list[list[Tensor]]],
    func: Callable[..., Any],
    argnums: int | tuple[int, ...],
    args: tuple[Any, ...],
    has_aux: bool,
    colors: Tensor,
    count: int,
) -> Products:
    """One vjp for each colour of rows."""
    grad_spec = GradSpec(api, func, argnums, has_aux)
    recorded, output, aux = _C.call_vjp(grad_spec, args, True)
    outputs, spec = pytree.flatten(output)
    refuse_complex(api, "output", tuple(outputs))
    _check_length(_ROWS, api, outputs, colors)

    def pull(*cotangents: Tensor) -> list[Tensor]:
        return _C.call_vjp_of_leaves(recorded, [*cotangents], torch.is_grad_enabled())

    def work(start: int, size: int) -> list[Tensor]:
        cotangents = tuple(seeds(colors, start, size, outputs))
        return [_flat(leaf) for leaf in _for_each(pull, cotangents, "error")]

    parts = run(work, max(count, 1), outputs[0].device)
    return Products([chunking.join_leaves(parts, torch.cat)], outputs, spec, aux)


def _count(colors: Tensor) -> int:
    return int(colors.max()) + 1 if colors.numel() else 0


def _check_length(what: str, api: str, leaves: Sequence[Tensor], colors: Tensor) -> None:
    size = sum(leaf.numel() for leaf in leaves)
    if size != colors.numel():
        raise StructureError(
            f"torchlayers: {api}: the pattern has {colors.numel()} {what}, but there are {size}."
        )


def column_product(
    api: str,
    func: Callable[..., Any],
    argnums: int | tuple[int, ...],
    args: tuple[Any, ...],
    has_aux: bool,
) -> Callable[[Tensor], Tensor]:
    """The product of the Jacobian and a vector, both flattened."""
    jvp_spec = JvpSpec(api, func, argnums, has_aux)
    places = pytree.positions(api, argnums, len(args))
    primals = pytree.leaves(pytree.pick(args, places))

    def product(vector: Tensor) -> Tensor:
        tangents = _unflattened(vector, primals)
        pushed = pytree.leaves(jvp_spec.push(args, tangents, are_leaves=True)[1])
        return torch.cat(_promoted([leaf.reshape(-1) for leaf in pushed]))

    return product


def row_product(
    api: str,
    func: Callable[..., Any],
    argnums: int | tuple[int, ...],
    args: tuple[Any, ...],
    has_aux: bool,
) -> Callable[[Tensor], Tensor]:
    """The product of a vector and the Jacobian, both flattened."""
    recorded, output, _ = _C.call_vjp(GradSpec(api, func, argnums, has_aux), args, True)
    outputs = pytree.leaves(output)

    def product(vector: Tensor) -> Tensor:
        cotangents = _unflattened(vector, outputs)
        pulled = _C.call_vjp_of_leaves(recorded, [*cotangents], torch.is_grad_enabled())
        return torch.cat(_promoted([leaf.reshape(-1) for leaf in pulled]))

    return product


def _unflattened(vector: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(vector, [leaf.numel() for leaf in leaves])
    return [part.to(leaf).reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
