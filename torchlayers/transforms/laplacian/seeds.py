"""What the propagation begins with: the directions, their weights, and random directions."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import DtypeError, NotTensorError, StructureError, TransformError
from torchlayers.random import bernoulli, normal, split
from torchlayers.random.arguments import check_key
from torchlayers.transforms.laplacian.rows import Diagonal, Rows

Distribution: TypeAlias = Literal["rademacher", "normal"]


class Randomness(NamedTuple):
    """How random directions are drawn."""

    samples: int
    distribution: Distribution
    generator: torch.Generator | None
    key: Tensor | None

    def draw(self, like: Sequence[Tensor]) -> list[Tensor]:
        """``samples`` directions with the identity as covariance, for each tensor."""
        if self.key is not None:
            keys: Any = split(self.key, len(like))
            return [
                self._by_key(key, x).to(x.device, x.dtype)
                for key, x in zip(keys, like, strict=True)
            ]
        return [self._by_generator(x) for x in like]

    def _by_key(self, key: Tensor, like: Tensor) -> Tensor:
        shape = (self.samples, *like.shape)
        if self.distribution == "normal":
            return normal(key, shape, torch.float64 if like.dtype == torch.float64 else None)
        return bernoulli(key, 0.5, shape) * 2.0 - 1.0

    def _by_generator(self, like: Tensor) -> Tensor:
        options: dict[str, Any] = {
            "dtype": like.dtype,
            "device": like.device,
            "generator": self.generator,
        }
        shape = (self.samples, *like.shape)
        if self.distribution == "normal":
            return torch.randn(shape, **options)
        return torch.randint(0, 2, shape, **options) * 2 - 1


def check_randomness(
    api: str,
    samples: int | None,
    distribution: Distribution,
    generator: torch.Generator | None,
    key: Tensor | None,
) -> Randomness | None:
    if distribution not in ("rademacher", "normal"):
        raise TransformError(
            f"torchlayers: {api}: distribution must be 'rademacher' or 'normal', got "
            f"{distribution!r}."
        )
    if samples is None:
        if generator is not None or key is not None:
            raise TransformError(
                f"torchlayers: {api}: a generator or key is for random directions: pass samples, "
                "how many to draw, too."
            )
        return None
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise TransformError(
            f"torchlayers: {api}: samples must be a positive int, got {samples!r}."
        )
    if generator is not None and key is not None:
        raise TransformError(f"torchlayers: {api}: pass a generator or a key, not both.")
    if key is not None:
        check_key(api, key)
    return Randomness(samples, distribution, generator, key)


def check_primals(
    api: str, primals: Sequence[Any], args: tuple[Any, ...], places: Sequence[int]
) -> None:
    """Raises an error unless there are primals, and all are real floating-point tensors."""
    if not primals:
        raise StructureError(f"torchlayers: {api}: the chosen arguments hold no tensor.")
    for i, primal in enumerate(primals):
        name = pytree.leaf_name("argument", args, i, places)
        if not isinstance(primal, Tensor):
            raise NotTensorError(
                f"torchlayers: {api}: {name} must be a tensor, got {type(primal).__name__}. "
                "Convert it to a tensor, or leave it out of argnums."
            )
        if not primal.is_floating_point():
            advice = (
                "Pass the real and imaginary part as two arguments."
                if primal.is_complex()
                else "Convert it, or leave it out of argnums."
            )
            raise DtypeError(
                f"torchlayers: {api}: {name} must be of a real floating-point dtype, got "
                f"{primal.dtype}. {advice}"
            )


def identity(primals: Sequence[Tensor]) -> list[Rows]:
    """The Jacobian of each primal with respect to all of them."""
    total = sum(primal.numel() for primal in primals)
    rows: list[Rows] = []
    start = 0
    for primal in primals:
        rows.append(Diagonal(torch.ones_like(primal), True, start, total))
        start += primal.numel()
    return rows


def directions_for(
    api: str, directions: Any, primals: Sequence[Tensor], spec: pytree.TreeSpec
) -> list[Tensor]:
    """The leaves of the directions, checked: each has its primal's shape behind dimension 0."""
    leaves, found_spec = pytree.flatten(directions)
    if found_spec != spec:
        # One argument may be given without the tuple.
        leaves, found_spec = pytree.flatten((directions,))
    if found_spec != spec:
        raise StructureError(
            f"torchlayers: {api}: directions must have the structure of the chosen arguments: got "
            f"{pytree.describe(pytree.flatten(directions)[1])} for {pytree.describe(spec)} (* is a "
            "leaf)."
        )
    counts = set()
    for direction, primal in zip(leaves, primals, strict=True):
        if not isinstance(direction, Tensor):
            raise NotTensorError(
                f"torchlayers: {api}: directions must be tensors, got {type(direction).__name__}."
            )
        if direction.dim() == 0 or direction.shape[1:] != primal.shape:
            raise StructureError(
                f"torchlayers: {api}: directions of shape {tuple(direction.shape)} do not fit an "
                f"argument of shape {tuple(primal.shape)}: stack k directions to shape (k, "
                f"{', '.join(map(str, primal.shape))})."
            )
        if direction.dtype != primal.dtype:
            raise DtypeError(
                f"torchlayers: {api}: directions have dtype {direction.dtype}, but their argument "
                f"has {primal.dtype}. Convert them."
            )
        counts.add(direction.shape[0])
    if len(counts) > 1:
        raise StructureError(
            f"torchlayers: {api}: directions must be equally many for each tensor, got "
            f"{sorted(counts)}."
        )
    return leaves


def weights_for(api: str, weights: Tensor | None, count: int, shape: torch.Size) -> Tensor | None:
    """The weights of ``count`` directions: a vector, or a symmetric matrix."""
    if weights is None:
        return None
    if not isinstance(weights, Tensor):
        raise NotTensorError(
            f"torchlayers: {api}: weights must be a tensor, got {type(weights).__name__}."
        )
    if weights.shape == (count, count) and weights.dim() == 2:
        return 0.5 * (weights + weights.mT)
    if weights.shape == (count,) or weights.shape == shape:
        return weights.reshape(-1)
    raise StructureError(
        f"torchlayers: {api}: weights must be a matrix of shape ({count}, {count}) or a vector of "
        f"shape ({count},), one entry a direction, got shape {tuple(weights.shape)}."
    )


def random_directions(
    randomness: Randomness, primals: Sequence[Tensor], weights: Tensor | None
) -> list[Tensor]:
    """Directions v for which the mean of the sum of v' H v is that of tr(H) over the samples.

    With weights W the directions are v, then W v, which are paired: v' H W v has the mean tr(H W).
    """
    count = randomness.samples
    drawn = randomness.draw(primals)
    if weights is None:
        return drawn
    flat = torch.cat([each.reshape(count, -1) for each in drawn], 1)
    other = flat * weights if weights.dim() == 1 else flat @ weights
    parts = torch.split(other, [primal.numel() for primal in primals], 1)
    return [torch.cat([each, part.view_as(each)]) for each, part in zip(drawn, parts, strict=True)]
