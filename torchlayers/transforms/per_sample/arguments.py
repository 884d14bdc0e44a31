"""The arguments of a call: which to differentiate with respect to, and which are batched."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from torchlayers.core import pytree, tracing_state
from torchlayers.core.argnums import Argnums, Names, are_numbers, by_names
from torchlayers.core.errors import DimensionError, TransformError
from torchlayers.core.layer_stack import transformed
from torchlayers.transforms.vmap_dims import VmapSpec

Numbers: TypeAlias = int | tuple[int, ...]


class PerSampleArguments(NamedTuple):
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: tuple[int, ...]  # of the chosen arguments
    in_dims: Any

    def as_chosen(self, values: Sequence[Tensor], argnums: Numbers) -> Any:
        """Returns the values, one per chosen tensor, in the structure of the chosen arguments."""
        result = pytree.unflatten(values, pytree.flatten(pytree.pick(self.args, self.places))[1])
        return result[0] if isinstance(argnums, int) else result

    def leaves(self) -> list[Tensor]:
        return pytree.leaves(pytree.pick(self.args, self.places))

    def sample_count(self, api: str, func: Callable[..., Any]) -> int:
        """Returns the number of samples.

        Raises:
            vmap's errors if in_dims don't match the arguments; their messages name api.
        """
        return VmapSpec(func, self.in_dims, 0, "error", api=api).flat_arguments(self.args)[-1]

    def refuse_batched(self, api: str) -> None:
        for place in self.places:
            dims = self.in_dims
            if isinstance(dims, (tuple, list)) and place < len(dims):
                dims = dims[place]
            if any(dim is not None for dim in pytree.leaves(dims)):
                raise DimensionError(
                    f"torchlayers: {api}: argument {place} is in argnums and batched, so its "
                    "gradients can't be summed over the samples. Give it the in_dim None."
                )


def of_samples(
    api: str,
    call: Callable[[Callable[..., Any], Numbers, PerSampleArguments], Any],
    func: Callable[..., Any],
    argnums: Argnums,
    in_dims: Any,
) -> Callable[..., Any]:
    """Returns the transformed function, which passes its arguments to `call` as a
    PerSampleArguments."""

    def transform(func: Callable[..., Any], argnums: Numbers, rests: int = 0) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if tracing_state.is_tracing():
                raise TransformError(
                    f"torchlayers: {api} is not supported by torch.compile. Call it outside the "
                    "compiled function."
                )
            places = pytree.positions(api, argnums, len(args))
            func_args = len(args) - rests  # by_names appends the entries that are not chosen
            dims = in_dims
            if dims is None:
                dims = tuple(None if place in places else 0 for place in range(func_args))
            if isinstance(dims, tuple):
                dims = (*dims, *[None] * rests)
            return call(func, argnums, PerSampleArguments(args, kwargs, places, dims))

        return transformed(func, wrapper)

    if are_numbers(argnums):
        return transform(func, argnums)
    entries = argnums if isinstance(argnums, tuple) else (argnums,)
    rests = sum(isinstance(entry, Names) for entry in entries)
    return by_names(api, partial(transform, rests=rests), func, argnums)
