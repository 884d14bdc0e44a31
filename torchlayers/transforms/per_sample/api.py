"""The functions per_sample_norms and clipped_grad."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.annotations import P, Randomness
from torchlayers.core.argnums import Argnums
from torchlayers.core.layer_stack import transformed
from torchlayers.transforms.chunking import check_chunk_size
from torchlayers.transforms.per_sample.arguments import Numbers, PerSampleArguments, of_samples
from torchlayers.transforms.per_sample.sample import Sample
from torchlayers.transforms.per_sample.uses import add_parts, wide
from torchlayers.transforms.vmap import vmap
from torchlayers.transforms.vmap_dims import check_randomness


def per_sample_norms(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    in_dims: Any = None,
    *,
    has_aux: bool = False,
    each: bool = False,
    randomness: Randomness = "error",
    chunk_size: int | None = None,
) -> Callable[P, Any]:
    """Norm of each sample's gradient, without computing the gradients.

    The norms are those of ``vmap(grad(func, argnums), in_dims)``, for less memory and time: for
    the weights of linear layers, convolutions and embeddings, no per-sample gradient is
    materialized if its norm is cheaper to compute from the layer's input and the cotangent of its
    output.

    Args:
        func: a function of one sample; returns a real scalar tensor (no dimensions), or
            ``(scalar, aux)`` with has_aux.
        argnums: which positional arguments to differentiate with respect to, as for :func:`grad`.
        in_dims: the batch dimension of each positional argument, as for :func:`vmap`. None: the
            first, except that the arguments in argnums are shared by all samples.
        has_aux: func returns a second value, which is returned for each sample.
        each: return a separate norm for each tensor, instead of one over all of them.
        randomness: as for :func:`vmap`.
        chunk_size: as for :func:`vmap`.
    Returns:
        A function with func's arguments that returns a tensor of the samples' norms; with `each`,
        one such tensor per chosen tensor, in the structure of the chosen arguments; with has_aux
        ``(norms, aux)``.
    Raises:
        NotScalarError: func returned something other than a real scalar tensor for a sample.
        TransformError: the input of a product with a weight was written to before the norm was
            computed from it; or the call is inside torch.compile.
    Example:
        >>> def loss(weight, x):
        ...     return (weight @ x).sum()
        >>> per_sample_norms(loss)(torch.ones(4, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([10.,  2.])

    Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015).
    """

    check_randomness("per_sample_norms", randomness)
    check_chunk_size("per_sample_norms", chunk_size, None)

    def call(func: Callable[..., Any], argnums: Numbers, arguments: PerSampleArguments) -> Any:
        def of_sample(*args: Any) -> Any:
            sample = Sample("per_sample_norms", func, arguments.places, has_aux, keeps=False)
            aux = sample.run(args, arguments.kwargs)
            squares = [weight.squares() for weight in sample.weights]
            return squares if each else _sum(squares), aux

        batched = vmap(
            transformed(func, of_sample), arguments.in_dims, 0, randomness, chunk_size=chunk_size
        )
        # Not every function can be called with no samples.
        if arguments.sample_count("per_sample_norms", func) == 0 and not has_aux:
            nothing = [wide(leaf.new_zeros(0)) for leaf in arguments.leaves()]
            return arguments.as_chosen(nothing, argnums) if each else _sum(nothing)
        squares, aux = batched(*arguments.args)
        result = arguments.as_chosen([*map(_root, squares)], argnums) if each else _root(squares)
        return (result, aux) if has_aux else result

    return of_samples("per_sample_norms", call, func, argnums, in_dims)


def clipped_grad(
    func: Callable[P, Any],
    max_norm: float | Tensor,
    argnums: Argnums = 0,
    in_dims: Any = None,
    *,
    has_aux: bool = False,
    randomness: Randomness = "error",
) -> Callable[P, Any]:
    """Sum of the samples' gradients, each scaled down to a norm of at most max_norm.

    It takes one forward and one backward pass: the residuals from which the norms are computed
    give the sum as well. With noise added, that is a step of DP-SGD.

    Args:
        func: a function of one sample, as for :func:`per_sample_norms`, like the other arguments.
        max_norm: the largest allowed norm of a sample's gradient, over all chosen tensors.
    Returns:
        A function with func's arguments that returns ``(gradients, norms)``: the sums, in the
        structure of the chosen arguments, and the norms of the samples' gradients before clipping;
        with has_aux ``(gradients, (norms, aux))``.
    Raises:
        ValueError: max_norm is not greater than 0.
        DimensionError: an argument in argnums is batched.
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
    check_randomness("clipped_grad", randomness)
    if not isinstance(max_norm, Tensor) and not max_norm > 0:
        raise ValueError(
            f"torchlayers: clipped_grad: max_norm must be greater than 0, got {max_norm!r}."
        )

    def call(func: Callable[..., Any], argnums: Numbers, arguments: PerSampleArguments) -> Any:
        arguments.refuse_batched("clipped_grad")
        leaves = arguments.leaves()
        if arguments.sample_count("clipped_grad", func) == 0 and not has_aux:
            nothing = [wide(leaf.new_zeros(0)) for leaf in leaves]
            return arguments.as_chosen([*map(torch.zeros_like, leaves)], argnums), _sum(nothing)
        samples: list[Sample] = []

        def of_sample(*args: Any) -> Any:
            sample = Sample("clipped_grad", func, arguments.places, has_aux, keeps=True)
            aux = sample.run(args, arguments.kwargs)
            samples.append(sample)
            square = _sum([weight.squares() for weight in sample.weights])
            return square, [weight.saved for weight in sample.weights], aux

        batched = vmap(transformed(func, of_sample), arguments.in_dims, 0, randomness)
        squares, saved, aux = batched(*arguments.args)
        norms = _root(squares)
        scale = max_norm / norms.clamp(min=max_norm)
        totals = [
            weight.total(leaf, saved.pop(0), scale)
            for leaf, weight in zip(leaves, samples[0].weights, strict=True)
        ]
        return arguments.as_chosen(totals, argnums), ((norms, aux) if has_aux else norms)

    return of_samples("clipped_grad", call, func, argnums, in_dims)


def _root(squares: Tensor) -> Tensor:
    """Square root with a zero derivative at 0; sums of Gram matrices may round below 0."""
    is_none = squares <= 0
    return torch.where(is_none, 1, squares).sqrt() * ~is_none


def _sum(squares: Sequence[Tensor]) -> Tensor:
    return add_parts(squares) if squares else torch.zeros(())
