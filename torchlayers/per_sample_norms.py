"""Norms of each sample's gradient, and sums of clipped gradients, without any sample's gradient.

Both are what ``vmap(grad(func))`` would give, which runs here too, but for the weights of products:
where the function multiplies by one, it gets the weight's value, which is not differentiated, and
what goes in and what cotangent comes back is noted (`_Uses`). They tell the weight's gradient for
the sample (weight_uses.py). A gradient of any other kind, which vmap(grad) makes, is dropped as
soon as its norm is known.
"""

import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchlayers import _C, torch_compile, tree, weight_uses
from torchlayers.batch import Vmap
from torchlayers.errors import DimensionError, TransformError
from torchlayers.grad import Grad
from torchlayers.names import Argnums, Names, are_numbers, by_names
from torchlayers.stack import transformed
from torchlayers.vmap import vmap
from torchlayers.weight_uses import READERS, Use

__all__ = ["clipped_grad", "per_sample_norms"]

Numbers: TypeAlias = int | tuple[int, ...]

_torch: Any = torch  # what it keeps for its own use has no types
_level_on_top: Any = _torch._C._functorch.maybe_current_level
_hooks_on_saved_tensors: Any = _torch._C._autograd._top_saved_tensors_default_hooks


def per_sample_norms(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    in_dims: Any = None,
    *,
    has_aux: bool = False,
    each: bool = False,
    randomness: str = "error",
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """The norm of every sample's gradient, without the gradients.

    It is that of ``vmap(grad(func, argnums), in_dims)``, for less memory and time: of the weights
    of linear layers, convolutions and embeddings no sample's gradient is made where its norm is
    cheaper to have from what goes in and the cotangents of what comes out.

    Args:
        func: of one sample; returns a real tensor without dimensions, or ``(that, aux)`` with
            has_aux.
        argnums: which positional arguments to differentiate by, as for :func:`grad`.
        in_dims: which dimension of each positional argument is the samples', as for :func:`vmap`.
            None: the first, but for arguments that are differentiated by, which are all samples'.
        has_aux: func returns a second value, which is returned for each sample.
        each: the norms by each tensor by itself, and not by all together.
        randomness: as for :func:`vmap`.
        chunk_size: as for :func:`vmap`.
    Returns:
        A function with func's arguments that returns a tensor of the samples' norms; with each one
        for every tensor, in the structure of the chosen arguments; with has_aux ``(norms, aux)``.
    Raises:
        NotScalarError: func returned something else than a real tensor without dimensions for a
            sample.
        TransformError: what a weight was multiplied with has been written to before the norm was
            told from it; or it runs inside torch.compile.
    Example:
        >>> def loss(weight, x):
        ...     return (weight @ x).sum()
        >>> per_sample_norms(loss)(torch.ones(4, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([10.,  2.])

    Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015).
    """

    def call(func: Callable[..., Any], argnums: Numbers, given: _Given) -> Any:
        def of_sample(*args: Any) -> Any:
            sample = _Sample("per_sample_norms", func, given.places, has_aux, keeps=False)
            aux = sample.run(args, given.kwargs)
            squares = [weight.squares() for weight in sample.weights]
            return squares if each else _sum(squares), aux

        batched = vmap(
            transformed(func, of_sample), given.in_dims, 0, randomness, chunk_size=chunk_size
        )
        if not has_aux and given.are_none(func):
            nothing = [weight_uses.wide(leaf.new_zeros(0)) for leaf in given.leaves()]
            return given.as_chosen(nothing, argnums) if each else _sum(nothing)
        squares, aux = batched(*given.args)
        result = given.as_chosen([*map(_root, squares)], argnums) if each else _root(squares)
        return (result, aux) if has_aux else result

    return _of_samples("per_sample_norms", call, func, argnums, in_dims)


def clipped_grad(
    func: Callable[..., Any],
    max_norm: float | Tensor,
    argnums: Argnums = 0,
    in_dims: Any = None,
    *,
    has_aux: bool = False,
    randomness: str = "error",
) -> Callable[..., Any]:
    """The sum of the samples' gradients, each scaled down to a norm of at most max_norm.

    func runs once, and is pulled back once: what has told the norms gives the sum as well. With
    noise added, that is a step of DP-SGD.

    Args:
        func: of one sample, as for :func:`per_sample_norms`; as are the other arguments.
        max_norm: the largest norm a sample's gradient, by all chosen tensors together, may have.
    Returns:
        A function with func's arguments that returns ``(gradients, norms)``: the sums, in the
        structure of the chosen arguments, and the norms of the samples' gradients before; with
        has_aux ``(gradients, (norms, aux))``.
    Raises:
        ValueError: max_norm is not greater than 0.
        DimensionError: an argument that is differentiated by differs among the samples.
        NotScalarError, TransformError: as for :func:`per_sample_norms`.
    Example:
        >>> def loss(weight, x):
        ...     return (weight @ x).sum()
        >>> x = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        >>> clipped_grad(loss, 5.0)(torch.ones(4, 2), x)[0][0]
        tensor([1.5000, 3.0000])

    Source: Abadi et al., "Deep Learning with Differential Privacy" (2016), algorithm 1; one pass as
        in Bu, Wang, Zha and Karypis, "Differentially Private Optimization on Large Model at Small
        Cost" (2023).
    """
    if not isinstance(max_norm, Tensor) and not max_norm > 0:
        raise ValueError(
            f"torchlayers: clipped_grad: max_norm is a norm greater than 0, got {max_norm!r}."
        )

    def call(func: Callable[..., Any], argnums: Numbers, given: _Given) -> Any:
        given.refuse_batched("clipped_grad")
        leaves = given.leaves()
        if not has_aux and given.are_none(func):
            nothing = [weight_uses.wide(leaf.new_zeros(0)) for leaf in leaves]
            return given.as_chosen([*map(torch.zeros_like, leaves)], argnums), _sum(nothing)
        samples: list[_Sample] = []

        def of_sample(*args: Any) -> Any:
            sample = _Sample("clipped_grad", func, given.places, has_aux, keeps=True)
            aux = sample.run(args, given.kwargs)
            samples.append(sample)
            square = _sum([weight.squares() for weight in sample.weights])
            return square, [weight.kept for weight in sample.weights], aux

        batched = vmap(transformed(func, of_sample), given.in_dims, 0, randomness)
        squares, kept, aux = batched(*given.args)
        norms = _root(squares)
        scale = max_norm / norms.clamp(min=max_norm)
        totals = [
            weight.total(leaf, kept.pop(0), scale)
            for leaf, weight in zip(leaves, samples[0].weights, strict=True)
        ]
        return given.as_chosen(totals, argnums), ((norms, aux) if has_aux else norms)

    return _of_samples("clipped_grad", call, func, argnums, in_dims)


class _Given(NamedTuple):
    """A call's arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: tuple[int, ...]  # of those that are differentiated by
    in_dims: Any

    def as_chosen(self, values: Sequence[Tensor], argnums: Numbers) -> Any:
        """Of each chosen tensor one, in their structure."""
        result = tree.unflatten(values, tree.flatten(tree.pick(self.args, self.places))[1])
        return result[0] if isinstance(argnums, int) else result

    def leaves(self) -> list[Tensor]:
        return tree.leaves(tree.pick(self.args, self.places))

    def are_none(self, func: Callable[..., Any]) -> bool:
        """Whether there are no samples, which not every function can be called with."""
        return Vmap(func, self.in_dims, 0, "error").flat_arguments(self.args)[-1] == 0

    def refuse_batched(self, api: str) -> None:
        for place in self.places:
            dims = self.in_dims
            if isinstance(dims, (tuple, list)) and place < len(dims):
                dims = dims[place]
            if any(dim is not None for dim in tree.leaves(dims)):
                raise DimensionError(
                    f"torchlayers: {api}: argument {place} is differentiated by, and has the "
                    "samples in a dimension: there is no sum of gradients by it. Give it the "
                    "in_dim None."
                )


def _of_samples(
    api: str,
    call: Callable[[Callable[..., Any], Numbers, _Given], Any],
    func: Callable[..., Any],
    argnums: Argnums,
    in_dims: Any,
) -> Callable[..., Any]:
    """The function that does what call does with a call's arguments."""

    def transform(func: Callable[..., Any], argnums: Numbers, rests: int = 0) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if torch_compile.is_tracing():
                raise TransformError(
                    f"torchlayers: {api} is not known to torch.compile. Call it outside the "
                    "compiled function."
                )
            places = tree.positions(api, argnums, len(args))
            own = len(args) - rests  # what names leave over of an argument comes behind
            dims = in_dims
            if dims is None:
                dims = tuple(None if place in places else 0 for place in range(own))
            if isinstance(dims, tuple):
                dims = (*dims, *[None] * rests)
            return call(func, argnums, _Given(args, kwargs, places, dims))

        return transformed(func, wrapper)

    if are_numbers(argnums):
        return transform(func, argnums)
    entries = argnums if isinstance(argnums, tuple) else (argnums,)
    rests = sum(isinstance(entry, Names) for entry in entries)
    return by_names(api, partial(transform, rests=rests), func, argnums)


def _root(squares: Tensor) -> Tensor:
    """The roots, whose derivative at 0 is 0. Gram matrices round below 0."""
    is_none = squares <= 0
    return torch.where(is_none, 1, squares).sqrt() * ~is_none


def _sum(squares: Sequence[Tensor]) -> Tensor:
    return weight_uses.added(squares) if squares else torch.zeros(())


class _Weight:
    """What is known of the gradient by one tensor, for one sample."""

    def __init__(self, like: Tensor, keeps: bool) -> None:
        self.nothing = weight_uses.wide(like.new_zeros(()))
        self.keeps = keeps  # what its total is told from
        self.uses: list[Use] = []  # of which the cotangents have come
        self.awaited = 0
        self.is_used_otherwise = False
        self.besides: Tensor | None = None  # what vmap(grad) has made, of its other uses
        self.square: Tensor | None = None
        self.kept: tuple[Tensor, ...] = ()

    def expect(self, use: Use) -> Callable[[Tensor], None]:
        """What takes the use's cotangent."""
        self.awaited += 1

        def arrive(g: Tensor) -> None:
            use.g = g
            self.uses.append(use)
            self.awaited -= 1
            if self.awaited == 0 and not self.is_used_otherwise:
                self.settle()

        return arrive

    def add(self, gradient: Tensor) -> None:
        """That by its other uses, which is complete."""
        if self.square is not None:
            raise TransformError(
                "torchlayers: a weight of a product is used elsewhere too, past the modes of torch "
                "functions (torch._C.DisableTorchFunction), so that its gradient is a sum of which "
                "not all was known. Use it there as 1 * weight, made before."
            )
        self.besides = gradient
        if self.awaited == 0 and not self.uses:
            self.settle()

    def settle(self) -> None:
        """Tells the norm, and lets go of what has told it, but for what the total is told from."""
        uses, gradient = self.uses, None
        size = sum(part.numel() for use in uses for part in use.kept())
        if self.besides is None:
            self.square = weight_uses.squares(uses)
            keeps_gradient = self.keeps and uses[0].shape.numel() <= size
            if self.square is None and len(uses) == 1 and not keeps_gradient:
                self.square = weight_uses.squares_by_parts(uses[0])
        if self.square is None:
            gradient = weight_uses.gradient(uses, self.besides)
            self.square = weight_uses.dot(gradient, gradient)
        if self.keeps:
            if gradient is not None and (self.besides is not None or gradient.numel() <= size):
                self.kept = (gradient,)
            else:
                self.kept = tuple(part for use in uses for part in use.kept())
        for use in uses:
            use.forget()
        if len(self.kept) < 2:
            self.uses = []
        self.besides = None

    def squares(self) -> Tensor:
        """When the pass is over."""
        if self.square is None:
            if not self.uses and self.besides is None:
                return self.nothing
            self.settle()
        assert self.square is not None
        return self.square

    def total(self, like: Tensor, kept: Sequence[Tensor], scale: Tensor) -> Tensor:
        """The sum of the samples' gradients, each times its scale; kept is of all samples."""
        if not kept:
            return torch.zeros_like(like)
        if not self.uses:
            (gradients,) = kept
            total: Tensor = torch.tensordot(scale.to(gradients.dtype), gradients, 1)
            return total.to(like.dtype)
        parts = []
        for use, x, g in zip(self.uses, kept[::2], kept[1::2], strict=True):
            scales = scale.to(g.dtype).reshape(-1, *[1] * (g.dim() - 1))
            parts.append(use.total(x, g * scales))
        return weight_uses.added(parts).to(like.dtype)


class _Sample:
    """One sample's gradient: a tensor of the chosen arguments has a _Weight."""

    def __init__(
        self,
        api: str,
        func: Callable[..., Any],
        places: tuple[int, ...],
        has_aux: bool,
        keeps: bool,
    ) -> None:
        self.api, self.func, self.places = api, func, places
        self.has_aux, self.keeps = has_aux, keeps
        self.weights: list[_Weight] = []

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the function and its pass. Returns aux."""

        def watched(*args: Any) -> Any:
            *args_of_func, anchor = args
            leaves = tree.leaves(tree.pick(args_of_func, self.places))
            self.weights = [_Weight(leaf, self.keeps) for leaf in leaves]
            level = _level_on_top()
            for leaf, weight in zip(leaves, self.weights, strict=True):
                leaf.register_hook(partial(_arrived, weight, level))
            with _Uses(self.api, level, leaves, self.weights, anchor):
                return self.func(*args_of_func, **kwargs)

        anchor = torch.full((), -0.0)  # which changes nothing that it is added to
        argnums = (*self.places, len(args))
        given = Grad(self.api, transformed(self.func, watched), argnums, self.has_aux)
        aux: Any = _C.call_grad(given, (*args, anchor), {})[2]
        return aux if self.has_aux else ()


def _arrived(weight: _Weight, level: int, gradient: Tensor) -> Tensor:
    weight.add(_C.unwrap(gradient, level))
    return gradient.new_zeros(()).expand(gradient.shape)  # in the place of what would be kept


class _Uses(TorchFunctionMode):
    """Inside, what multiplies by a weight gets its value, and is noted."""

    def __init__(
        self,
        api: str,
        level: int,
        leaves: list[Tensor],
        weights: list[_Weight],
        anchor: Tensor,
    ) -> None:
        super().__init__()
        self.api, self.level, self.anchor = api, level, anchor
        self.leaves = leaves
        self.weights = dict(zip(map(id, leaves), weights, strict=True))

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        used = {id(leaf) for leaf in _tensors((args, kwargs))} & self.weights.keys()
        if not used:
            return func(*args, **kwargs)
        if (body := _body(func)) is not None:
            with self:
                return body(*args, **kwargs)
        if (use := self._use(func, args, kwargs)) is not None:
            return self._called(use, func, args, kwargs)
        result = func(*args, **kwargs)
        if any(tensor.requires_grad for tensor in _tensors(result)):
            for each in used:
                self.weights[each].is_used_otherwise = True
        return result

    def _use(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Use | None:
        """What is to be noted of a call of the level's own, whose tensors nobody packs."""
        reader = READERS.get(func)
        if (
            reader is None
            or _level_on_top() != self.level
            or not torch.is_grad_enabled()
            or _hooks_on_saved_tensors(True) is not None
        ):
            return None
        use = reader(*args, **kwargs)
        if use is None or use.weight is use.x or id(use.weight) not in self.weights:
            return None
        return None if use.weight.is_complex() else use

    def _called(self, use: Use, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        leaf, value = use.weight, _C.unwrap(use.weight, self.level)

        def valued(each: Any) -> Any:
            return value if each is leaf else each

        result: Tensor = func(
            *map(valued, args), **{name: valued(each) for name, each in kwargs.items()}
        )
        if not result.requires_grad:
            result = result + self.anchor
        use.weight, use.x = value, _C.unwrap(use.x, self.level)
        is_unchanged = _watched(use.x)
        expect = self.weights[id(leaf)].expect(use)

        def arrive(g: Tensor) -> None:
            if not is_unchanged(use.x):
                raise TransformError(
                    f"torchlayers: {self.api}: what a weight was multiplied with has been written "
                    "to since, and is needed for the norm of its gradient. Use the out-of-place "
                    "operator, or write to a clone."
                )
            expect(_C.unwrap(g, self.level))

        result.register_hook(arrive)  # type: ignore[no-untyped-call]
        return result


def _watched(x: Tensor) -> Callable[[Tensor], bool]:
    """What tells whether x, which is given again, has its numbers still. It does not keep them."""
    # Writes at any level change what holds them, or put another in its place.
    held = _C.holder_of(x)
    version = None if held.is_inference() else held._version
    which = weakref.ref(held)

    def is_unchanged(x: Tensor) -> bool:
        now = _C.holder_of(x)
        return which() is now and (version is None or now._version == version)

    return is_unchanged


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors([*values.values()])


@cache
def _body(func: Any) -> Callable[..., Any] | None:
    """A function of torch.nn.functional that is Python, without asking modes again what to do."""
    if not isinstance(func, types.FunctionType) or func.__module__ != F.__name__:
        return None
    asks = {name: _asks_nobody for name in func.__code__.co_names if name.startswith(_ASKS)}
    if not asks:
        return None
    body = types.FunctionType(
        func.__code__,
        {**func.__globals__, **asks},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    body.__kwdefaults__ = func.__kwdefaults__
    return body


_ASKS = "has_torch_function"


def _asks_nobody(*args: Any) -> bool:
    return False
