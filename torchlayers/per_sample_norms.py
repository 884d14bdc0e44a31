"""Norms of each sample's gradient, and sums of clipped gradients, without any sample's gradient.

Both are what ``vmap(grad(func))`` would give, which runs here too, but for the weights of products:
where the function multiplies by one, it gets the weight's value, which is not differentiated, and
what goes in and what cotangent comes back is noted (`_Uses`). They tell the weight's gradient for the
sample (weight_uses.py). A gradient of any other kind, which vmap(grad) makes, is dropped as soon as
its norm is known.
"""

import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchlayers import _C, torch_compile, tree, weight_uses
from torchlayers.errors import DimensionError, TransformError
from torchlayers.grad import Grad
from torchlayers.names import Argnums, are_numbers, by_names
from torchlayers.stack import transformed
from torchlayers.vmap import vmap
from torchlayers.weight_uses import READERS, Use

__all__ = ["clipped_grad", "per_sample_norms"]

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

    It is that of ``vmap(grad(func, argnums), in_dims)``, for less memory and time: of the weights of
    linear layers, convolutions and embeddings no sample's gradient is made where its norm is cheaper
    to have from what goes in and the cotangents of what comes out.

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
        A function with func's arguments that returns a tensor of the samples' norms; with each in the
        structure of the chosen arguments one for every tensor; with has_aux ``(norms, aux)``.
    Raises:
        NotScalarError: func returned something else than a real tensor without dimensions for a
            sample.
        TransformError: what a weight was multiplied with has been written to before the gradient was
            told from it; or it runs inside torch.compile.
    Example:
        >>> def loss(weight, x):
        ...     return (weight @ x).sum()
        >>> per_sample_norms(loss)(torch.ones(4, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([10.,  2.])

    Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015).
    """
    if not are_numbers(argnums):
        return by_names(
            "per_sample_norms",
            lambda func, argnums: per_sample_norms(
                func,
                argnums,
                in_dims,
                has_aux=has_aux,
                each=each,
                randomness=randomness,
                chunk_size=chunk_size,
            ),
            func,
            argnums,
        )
    numbers = cast("int | tuple[int, ...]", argnums)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = _places("per_sample_norms", numbers, args)

        def of_sample(*args: Any) -> Any:
            found = _Sample("per_sample_norms", func, places, has_aux, keeps=False)
            aux = found.run(args, kwargs)
            squares = [weight.squares() for weight in found.weights]
            norms = [_root(square) for square in squares] if each else [_root(sum(squares))]
            return norms, aux

        dims = _dims(in_dims, places, args)
        norms, aux = vmap(transformed(func, of_sample), dims, 0, randomness, chunk_size=chunk_size)(*args)
        result = norms[0]
        if each:
            chosen = tree.pick(args, places)
            result = tree.unflatten(norms, tree.flatten(chosen)[1])
            result = result[0] if isinstance(argnums, int) else result
        return (result, aux) if has_aux else result

    return transformed(func, wrapper)


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

    func runs once, and is pulled back once: what has told the norms gives the sum as well. With noise
    added, that is a step of DP-SGD.

    Args:
        func: of one sample, as for :func:`per_sample_norms`; as are the other arguments.
        max_norm: the largest norm a sample's gradient, by all chosen tensors together, may have.
    Returns:
        A function with func's arguments that returns ``(gradients, norms)``: the sums, in the
        structure of the chosen arguments, and the norms of the samples' gradients before; with
        has_aux ``(gradients, (norms, aux))``.
    Raises:
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
    if not are_numbers(argnums):
        return by_names(
            "clipped_grad",
            lambda func, argnums: clipped_grad(
                func, max_norm, argnums, in_dims, has_aux=has_aux, randomness=randomness
            ),
            func,
            argnums,
        )
    numbers = cast("int | tuple[int, ...]", argnums)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = _places("clipped_grad", numbers, args)
        dims = _dims(in_dims, places, args)
        leaves, spec = tree.flatten(tree.pick(args, places))
        _refuse_batched(dims, places, args)
        samples: list[_Sample] = []

        def of_sample(*args: Any) -> Any:
            found = _Sample("clipped_grad", func, places, has_aux, keeps=True)
            aux = found.run(args, kwargs)
            samples.append(found)
            norm = _root(sum(weight.squares() for weight in found.weights))
            return norm, [weight.kept for weight in found.weights], aux

        norms, kept, aux = vmap(transformed(func, of_sample), dims, 0, randomness)(*args)
        scale = max_norm / norms.clamp(min=max_norm)
        gradients = []
        for leaf, weight in zip(leaves, samples[0].weights, strict=True):
            gradients.append(weight.total(leaf, kept.pop(0), scale))
        result = tree.unflatten(gradients, spec)
        result = result[0] if isinstance(argnums, int) else result
        return result, ((norms, aux) if has_aux else norms)

    return transformed(func, wrapper)


def _places(api: str, argnums: int | tuple[int, ...], args: tuple[Any, ...]) -> tuple[int, ...]:
    if torch_compile.is_tracing():
        raise TransformError(
            f"torchlayers: {api} is not known to torch.compile. Call it outside the compiled function."
        )
    return tree.positions(api, argnums, len(args))


def _dims(in_dims: Any, places: tuple[int, ...], args: tuple[Any, ...]) -> Any:
    if in_dims is not None:
        return in_dims
    return tuple(None if place in places else 0 for place in range(len(args)))


def _refuse_batched(in_dims: Any, places: tuple[int, ...], args: tuple[Any, ...]) -> None:
    for place in places:
        dims = in_dims[place] if isinstance(in_dims, (tuple, list)) else in_dims
        if any(dim is not None for dim in tree.leaves(dims)):
            raise DimensionError(
                f"torchlayers: clipped_grad: argument {place} is differentiated by, and has the "
                "samples in a dimension: there is no sum of gradients by it. Give it the in_dim None."
            )


def _root(square: Any) -> Tensor:
    """The root, whose derivative at 0 is 0. Gram matrices round below 0."""
    positive = square > 0
    return torch.where(positive, square, 1).sqrt() * positive


class _Weight:
    """What is known of the gradient by one tensor, for one sample."""

    def __init__(self, keeps: bool) -> None:
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
                "torchlayers: a weight is used by an autograd.Function, and as a layer's weight "
                "too: the norm of its gradient is that of a sum. Give the Function a product with "
                "1 of it."
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
                return torch.zeros(())
            self.settle()
        assert self.square is not None
        return self.square

    def total(self, like: Tensor, kept: Sequence[Tensor], scale: Tensor) -> Tensor:
        """The sum of the samples' gradients, each times its scale; kept is of all samples."""
        if not kept:
            return torch.zeros_like(like)
        if not self.uses:
            (gradients,) = kept
            return torch.tensordot(scale.to(gradients.dtype), gradients, 1).to(like.dtype)
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
            self.weights = [_Weight(self.keeps) for _ in leaves]
            level = _level_on_top()
            for leaf, weight in zip(leaves, self.weights, strict=True):
                leaf.register_hook(partial(_arrived, weight, level))
            with _Uses(level, leaves, self.weights, anchor):
                return self.func(*args_of_func, **kwargs)

        anchor = torch.full((), -0.0)  # which changes nothing that it is added to
        argnums = (*self.places, len(args))
        given = Grad(self.api, transformed(self.func, watched), argnums, self.has_aux)
        _, _, aux = _C.call_grad(given, (*args, anchor), {})
        return aux if self.has_aux else ()


def _arrived(weight: _Weight, level: int, gradient: Tensor) -> Tensor:
    weight.add(_C.unwrap(gradient, level))
    return gradient.new_zeros(()).expand(gradient.shape)  # in the place of what would be kept


class _Uses(TorchFunctionMode):
    """Inside, what multiplies by a weight gets its value, and is noted."""

    def __init__(
        self, level: int, leaves: list[Tensor], weights: list[_Weight], anchor: Tensor
    ) -> None:
        super().__init__()
        self.level, self.anchor = level, anchor
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
        version = use.x._version
        expect = self.weights[id(leaf)].expect(use)

        def arrive(g: Tensor) -> None:
            if use.x._version != version:
                raise TransformError("written to")
            expect(_C.unwrap(g, self.level))

        result.register_hook(arrive)
        return result


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
