"""Shared by the tests of functionalize."""

import pytest
import torch

X = torch.tensor([[0.5, 1.0, 2.0], [1.5, -1.0, 0.3]])

removes = pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])

OTHERS = {
    "grad": lambda tf, f: tf.grad(lambda x: f(x).sum()),
    "vjp": lambda tf, f: lambda x: tf.vjp(f, x)[1](x)[0],
    "jvp": lambda tf, f: lambda x: tf.jvp(f, (x,), (x.cos(),)),
    "vmap": lambda tf, f: tf.vmap(f),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(lambda x: f(x).sum())),
    "jacrev": lambda tf, f: tf.jacrev(f),
    "jacfwd": lambda tf, f: tf.jacfwd(f),
}
others = pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
