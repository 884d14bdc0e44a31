"""Random numbers from explicit keys.

A key is an int64 tensor without dimensions: 64 bits, from which Philox-4x32 (a counter-based
generator) generates any number of random numbers. Each depends only on the key and on its position,
and is the same on every device. torch's generator is not used, and no state changes, so use a key
only once: for more numbers, :func:`split` it, or :func:`fold_in` a number.

Keys are plain tensors: they are batched (n of them have shape (n,)), indexed, stored and passed
through torch.compile like any other. Under :func:`torchlayers.vmap` each sample draws by its own
key. csrc/rules/random/philox.h describes how the numbers are generated.
"""

from typing import TYPE_CHECKING

from torchlayers.core.jax_names import refuse_name
from torchlayers.random.continuous import beta as beta
from torchlayers.random.continuous import cauchy as cauchy
from torchlayers.random.continuous import exponential as exponential
from torchlayers.random.continuous import gamma as gamma
from torchlayers.random.continuous import gumbel as gumbel
from torchlayers.random.continuous import laplace as laplace
from torchlayers.random.continuous import loggamma as loggamma
from torchlayers.random.continuous import logistic as logistic
from torchlayers.random.continuous import normal as normal
from torchlayers.random.continuous import student_t as student_t
from torchlayers.random.continuous import truncated_normal as truncated_normal
from torchlayers.random.continuous import uniform as uniform
from torchlayers.random.discrete import bernoulli as bernoulli
from torchlayers.random.discrete import binomial as binomial
from torchlayers.random.discrete import categorical as categorical
from torchlayers.random.discrete import choice as choice
from torchlayers.random.discrete import geometric as geometric
from torchlayers.random.discrete import multinomial as multinomial
from torchlayers.random.discrete import permutation as permutation
from torchlayers.random.discrete import poisson as poisson
from torchlayers.random.discrete import rademacher as rademacher
from torchlayers.random.discrete import randint as randint
from torchlayers.random.families import chisquare as chisquare
from torchlayers.random.families import double_sided_maxwell as double_sided_maxwell
from torchlayers.random.families import f as f
from torchlayers.random.families import generalized_normal as generalized_normal
from torchlayers.random.families import lognormal as lognormal
from torchlayers.random.families import maxwell as maxwell
from torchlayers.random.families import pareto as pareto
from torchlayers.random.families import rayleigh as rayleigh
from torchlayers.random.families import triangular as triangular
from torchlayers.random.families import wald as wald
from torchlayers.random.families import weibull_min as weibull_min
from torchlayers.random.keys import bits as bits
from torchlayers.random.keys import fold_in as fold_in
from torchlayers.random.keys import key as key
from torchlayers.random.keys import split as split
from torchlayers.random.multivariate import ball as ball
from torchlayers.random.multivariate import dirichlet as dirichlet
from torchlayers.random.multivariate import multivariate_normal as multivariate_normal
from torchlayers.random.multivariate import orthogonal as orthogonal

__all__ = [
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "student_t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
]

if not TYPE_CHECKING:

    def __getattr__(name):
        """Says what JAX's names are called here."""
        return refuse_name(__name__, name)
