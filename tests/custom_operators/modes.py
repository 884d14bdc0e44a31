"""The two kinds of rules, jvp and vjp, described by what the tests need of them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.func

import torchlayers as tl
from tests.custom_operators.operators import SEEN

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
T = torch.tensor([1.0, 0.3, -2.0], dtype=torch.float64)
Y = torch.tensor([1.5, 0.7, -0.2], dtype=torch.float64)
XS, TS = torch.stack([X, Y]), torch.stack([T, X])


@dataclasses.dataclass(frozen=True)
class Mode:
    name: str
    rule: Callable[..., Any]  # the decorator
    # The derivative of a unary operator as a rule, given its slope.
    linear: Callable[..., Any]
    # tf, f -> the derivative of f at X, along T or of a sum with the weights T.
    derivative: Callable[..., Any]
    nests: dict[str, Callable[..., Any]]

    @property
    def seen(self) -> list[Any]:
        return SEEN[self.name]


def pushed(tf, f, x, t):
    return tf.jvp(f, (x,), (t,))


def total(f):
    """f's results as one number."""
    return lambda x: (f(x) * torch.linspace(1, 2, 3, dtype=x.dtype)[: f(x).shape[0]]).sum()


FORWARD = Mode(
    "jvp",
    tl.extend.jvp_rule,
    lambda op, factor: lambda primals, tangents: (op(*primals), tangents[0] * factor),
    lambda tf, f: pushed(tf, f, X, T)[1],
    {
        "jvp": lambda tf, f: pushed(tf, f, X, T),
        "jvp(jvp)": lambda tf, f: pushed(tf, lambda x: pushed(tf, f, x, T), X, Y),
        "vmap(jvp)": lambda tf, f: tf.vmap(lambda x, t: pushed(tf, f, x, t))(XS, TS),
        "jvp(vmap)": lambda tf, f: pushed(tf, tf.vmap(f), XS, TS),
        "jacfwd": lambda tf, f: tf.jacfwd(f)(X),
        "jacfwd(jacfwd)": lambda tf, f: tf.jacfwd(tf.jacfwd(f))(X),
    },
)
REVERSE = Mode(
    "vjp",
    tl.extend.vjp_rule,
    lambda op, factor: lambda g, primals, result: g * factor,
    lambda tf, f: tf.grad(lambda x: (f(x) * T).sum())(X),
    {
        "grad": lambda tf, f: tf.grad(total(f))(X),
        "vjp": lambda tf, f: tf.vjp(f, X)[1](f(X) * 0 + 2),
        "jacrev": lambda tf, f: tf.jacrev(f)(X),
        "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(total(f)))(XS),
        "grad(vmap)": lambda tf, f: tf.grad(lambda xs: tf.vmap(f)(xs).sin().sum())(XS),
        "grad(grad)": lambda tf, f: tf.grad(lambda x: (tf.grad(total(f))(x) * Y).sum())(X),
        "vjp(vjp)": lambda tf, f: tf.vjp(lambda x: tf.vjp(f, x)[1](f(X) * 0 + 2)[0], X)[1](Y),
        "jacrev(jacrev)": lambda tf, f: tf.jacrev(tf.jacrev(f))(X),
        "jvp(grad)": lambda tf, f: tf.jvp(tf.grad(total(f)), (X,), (Y,)),
    },
)
MODES = FORWARD, REVERSE
