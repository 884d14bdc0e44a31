"""Samplers of integers and discrete distributions, random choices and permutations."""

import math

import torch
from torch import Tensor

from torchlayers.core.errors import TransformError
from torchlayers.random.arguments import (
    Number,
    Shape,
    as_tuple,
    broadcast,
    check_key,
    drawn,
    expanded,
    like,
    of_shape,
    operator_for,
    shape_of,
)
from torchlayers.random.continuous import gumbel
from torchlayers.random.keys import bits, split


def randint(
    key: Tensor,
    shape: Shape,
    minval: int | Tensor,
    maxval: int | Tensor,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Draws integers uniformly from [minval, maxval), up to a bias of one part in 2^63 / range.

    Args:
        key: a key.
        shape: of the result.
        minval, maxval: ints, or tensors of integers that broadcast to the shape, less than 2^63
            apart. Where maxval is not above minval, the result is minval.
        dtype: an integer dtype.
    Returns:
        A tensor of this shape and dtype.
    Raises:
        TypeError: minval or maxval is neither an int nor a tensor.
    Example:
        >>> x = randint(torchlayers.random.key(0), (1000,), 1, 7)
        >>> sorted(set(x.tolist()))
        [1, 2, 3, 4, 5, 6]

    Source: jax.random.randint.
    """
    check_key("random.randint", key)
    for bound in (minval, maxval):
        if not isinstance(bound, (int, Tensor)):
            raise TypeError(
                "torchlayers: random.randint: minval and maxval must be ints or tensors of "
                f"integers, got {type(bound).__name__}."
            )
    if isinstance(minval, int) and isinstance(maxval, int):
        if not (-(2**63) <= minval < 2**63 and maxval <= 2**63 and maxval - minval < 2**63):
            raise TransformError(
                f"torchlayers: random.randint: [{minval}, {maxval}) must be a range of fewer than "
                "2^63 int64 values. For a larger one, draw bits."
            )
        span: int | Tensor = max(maxval - minval, 1)
    else:
        span = (maxval - minval).clamp(min=1)  # type: ignore[union-attr]
    positive = bits(key, shape) >> 1 & (2**63 - 1)
    return of_shape("randint", positive % span + minval, shape).to(dtype)


def bernoulli(key: Tensor, p: Number = 0.5, shape: Shape | None = None) -> Tensor:
    """Draws bools that are True with probability p.

    Args:
        key: a key.
        p: a number, or a tensor that broadcasts to the shape.
        shape: of the result; that of p if None.
    Returns:
        A bool tensor of this shape.
    Example:
        >>> bernoulli(torchlayers.random.key(0), torch.tensor([0.0, 1.0]))
        tensor([False,  True])

    Source: jax.random.bernoulli.
    """
    shape = shape_of("bernoulli", shape, p)
    dtype = p.dtype if isinstance(p, Tensor) and p.is_floating_point() else None
    return of_shape("bernoulli", drawn("uniform", "bernoulli", key, shape, dtype) < p, shape)


def rademacher(key: Tensor, shape: Shape = (), dtype: torch.dtype = torch.int64) -> Tensor:
    """Draws -1 and 1 with equal probability.

    Args:
        key: a key.
        shape: of the result.
        dtype: of the result.
    Returns:
        A tensor of this shape and dtype.
    Example:
        >>> rademacher(torchlayers.random.key(0), (1000,)).unique()
        tensor([-1,  1])

    Source: jax.random.rademacher.
    """
    return 2 * bernoulli(key, shape=shape).to(dtype) - 1


def geometric(
    key: Tensor, p: Number, shape: Shape | None = None, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Draws numbers of trials up to the first success.

    Args:
        key: a key.
        p: the probability of success in one trial, above zero: a number, or a tensor that
            broadcasts to the shape.
        shape: of the result; that of p if None.
        dtype: of the result.
    Returns:
        A tensor of this shape and dtype, from 1 on; -1 where p is invalid. It has no derivative.
    Example:
        >>> geometric(torchlayers.random.key(0), torch.tensor([1.0, 2.0]))
        tensor([ 1, -1])

    Source: jax.random.geometric.
    """
    shape = shape_of("geometric", shape, p)
    u = drawn("uniform", "geometric", key, shape, torch.float64)
    (p,) = like("geometric", u, p=p)
    trials = torch.floor(torch.log1p(-u) / torch.log1p(-p.detach())) + 1
    largest = torch.iinfo(dtype).max / 2 if not dtype.is_floating_point else torch.finfo(dtype).max
    return torch.where((p > 0) & (p <= 1), trials.clamp(max=largest), -1).to(dtype)


def poisson(
    key: Tensor, rate: Number, shape: Shape | None = None, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Draws numbers from the Poisson distribution.

    Args:
        key: a key.
        rate: the mean, zero or above: a number, or a tensor that broadcasts to the shape.
        shape: of the result; that of rate if None.
        dtype: of the result.
    Returns:
        A tensor of this shape and dtype; -1 where rate is invalid. It has no derivative.
    Example:
        >>> x = poisson(torchlayers.random.key(0), torch.tensor([0.0, 3.0, 1000.0]))
        >>> x[0], x.dtype
        (tensor(0), torch.int64)

    Source: jax.random.poisson; W. Hoermann, "The transformed rejection method for generating
    Poisson random variables" (1993).
    """
    return _counted("poisson", key, shape, dtype, rate=rate)


def binomial(
    key: Tensor,
    count: Number,
    prob: Number,
    shape: Shape | None = None,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Draws numbers from the binomial distribution: how many of ``count`` trials succeed.

    Args:
        key: a key.
        count: the number of trials: a number, or a tensor that broadcasts to the shape.
        prob: the probability of success in one trial, likewise.
        shape: of the result; the broadcast shape of the parameters if None.
        dtype: of the result.
    Returns:
        A tensor of this shape and dtype; -1 where count or prob is invalid. It has no derivative.
    Example:
        >>> binomial(torchlayers.random.key(0), 10, torch.tensor([0.0, 1.0]))
        tensor([ 0, 10])

    Source: jax.random.binomial; W. Hoermann, "The generation of binomial random variates" (1993).
    """
    return _counted("binomial", key, shape, dtype, count=count, prob=prob)


def multinomial(
    key: Tensor,
    n: Number,
    p: Tensor,
    shape: Shape | None = None,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Draws how often each of several outcomes occurs in n trials.

    Args:
        key: a key.
        n: the number of trials: a number, or a tensor that broadcasts to the shape.
        p: the probabilities of the outcomes, along the last dimension; they are divided by their
            sum.
        shape: of the result without its last dimension; the broadcast shape of n and p without its
            last dimension if None.
        dtype: of the result.
    Returns:
        A tensor of this shape followed by p's last dimension; -1 where n is invalid. It has no
        derivative.
    Example:
        >>> multinomial(torchlayers.random.key(0), 10, torch.tensor([0.5, 0.0, 0.5])).sum()
        tensor(10)

    Source: jax.random.multinomial.
    """
    check_key("random.multinomial", key)
    count = p.shape[-1]
    if shape is None:
        shape = broadcast([n.shape if isinstance(n, Tensor) else (), p.shape[:-1]])
    shape = as_tuple(shape)
    p = expanded("multinomial", "p", p.detach().double(), (*shape, count))
    rest = expanded(
        "multinomial", "n", torch.as_tensor(n, dtype=torch.float64, device=key.device), shape
    )
    # Of the trials without an earlier outcome, each has this one with its share of what is left.
    shares = (p / p.flip(-1).cumsum(-1).flip(-1)).nan_to_num(0.0).clamp(0, 1)
    results = []
    for outcome, outcome_key in zip(shares.unbind(-1), split(key, count), strict=True):
        results.append(counts("binomial", outcome_key, shape, count=rest, prob=outcome))
        rest = rest - results[-1]
    numbers = torch.stack(results, -1)
    return torch.where(numbers.isnan(), -1, numbers).to(dtype)


def _counted(
    api: str, key: Tensor, shape: Shape | None, dtype: torch.dtype, **parameters: Number
) -> Tensor:
    check_key(f"random.{api}", key)
    shape = shape_of(api, shape, *parameters.values())
    numbers = counts(api, key, shape, **parameters)
    return torch.where(numbers.isnan(), -1, numbers).to(dtype)


def counts(api: str, key: Tensor, shape: Shape, **parameters: Number) -> Tensor:
    """Draws counts as float64; nan where the parameters are invalid."""
    options = [
        expanded(
            api,
            name,
            torch.as_tensor(value, dtype=torch.float64, device=key.device).detach(),
            as_tuple(shape),
        )
        for name, value in parameters.items()
    ]
    numbers: Tensor = operator_for(f"random_{api}", key)(key, *options)
    return numbers


def categorical(key: Tensor, logits: Tensor, dim: int = -1, shape: Shape | None = None) -> Tensor:
    """Draws indices with the probabilities softmax(logits).

    Args:
        key: a key.
        logits: unnormalised log-probabilities, along one dimension.
        dim: that dimension.
        shape: of the result, to which the shape of logits without dim broadcasts; if None, that
            shape itself.
    Returns:
        An int64 tensor of this shape.
    Example:
        >>> logits = torch.tensor([0.0, -torch.inf, 0.0])
        >>> categorical(torchlayers.random.key(0), logits, shape=(1000,)).unique()
        tensor([0, 2])

    Source: jax.random.categorical.
    """
    check_key("random.categorical", key)
    logits = logits.movedim(dim, -1)
    shape = tuple(logits.shape[:-1]) if shape is None else as_tuple(shape)
    logits = expanded("categorical", "logits", logits, (*shape, logits.shape[-1]))
    # The Gumbel-max trick, with an independent Gumbel number for each logit of each result.
    return (logits + gumbel(key, logits.shape, logits.dtype)).argmax(-1)


def permutation(key: Tensor, x: int | Tensor, dim: int = 0, independent: bool = False) -> Tensor:
    """Permutes the integers below x, or the slices of x, at random.

    Args:
        key: a key.
        x: an int, or a tensor.
        dim: the dimension of the tensor to permute.
        independent: whether each line along the dimension gets an independent permutation.
    Returns:
        A tensor like x, or of shape (x,) and dtype int64.
    Example:
        >>> permutation(torchlayers.random.key(0), 5).sort().values
        tensor([0, 1, 2, 3, 4])

    Source: jax.random.permutation.
    """
    check_key("random.permutation", key)
    if isinstance(x, int):
        return bits(key, (x,)).argsort(stable=True)
    if independent:
        return x.gather(dim, bits(key, x.shape).argsort(dim=dim, stable=True))
    return x.index_select(dim, bits(key, (x.shape[dim],)).argsort(stable=True))


def choice(
    key: Tensor,
    a: int | Tensor,
    shape: Shape = (),
    replace: bool = True,
    p: Tensor | None = None,
    dim: int = 0,
) -> Tensor:
    """Chooses among the integers below a, or the slices of a, at random.

    Args:
        key: a key.
        a: an int, or a tensor.
        shape: the shape of the choices.
        replace: whether one may be chosen more than once.
        p: the probability of each; equal if None.
        dim: the dimension of the tensor to choose along.
    Returns:
        A tensor like a, with this shape in place of dim.
    Raises:
        TransformError: more choices without replacement are requested than there are.
    Example:
        >>> choice(torchlayers.random.key(0), 5, (5,), replace=False).sort().values
        tensor([0, 1, 2, 3, 4])

    Source: jax.random.choice.
    """
    shape = as_tuple(shape)
    count = a if isinstance(a, int) else a.shape[dim]
    drawn = math.prod(shape)
    if not replace and drawn > count:
        raise TransformError(
            f"torchlayers: random.choice: can't choose {drawn} of {count} without replacement."
        )
    if p is not None:
        logits = p.log()
        if replace:
            chosen = categorical(key, logits, shape=(drawn,))
        else:
            chosen = (logits + gumbel(key, (count,), logits.dtype)).topk(drawn).indices
    elif replace:
        chosen = randint(key, (drawn,), 0, count)
    else:
        chosen = permutation(key, count)[:drawn]
    if isinstance(a, int):
        return chosen.reshape(shape)
    dim %= a.dim()
    return a.index_select(dim, chosen).reshape(*a.shape[:dim], *shape, *a.shape[dim + 1 :])
