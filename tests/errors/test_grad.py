"""Arguments of grad and grad_and_value, and results of their functions."""

import functools
import re

import pytest
import torch
import torch.func
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.errors.programs import BATCH, ONE, SHOULD_BE_A_PAIR, X
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import CallError, DtypeError, NotScalarError, NotTensorError, OutputError


class Pair:
    """A pytree whose leaves have no names."""

    def __init__(self, *values):
        self.values = values


pytree.register_pytree_node(
    Pair, lambda pair: (list(pair.values), None), lambda values, _: Pair(*values)
)


GRAD = [
    Misuse(
        "vector output",
        lambda tf: tf.grad(torch.sin)(X),
        NotScalarError,
        "torchlayers: grad: sin must return a scalar tensor (no dimensions), got shape (3,). Sum "
        "or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "output of one element",
        lambda tf: tf.grad(torch.sin)(X[:1]),
        NotScalarError,
        "torchlayers: grad: sin must return a scalar tensor (no dimensions), got shape (1,). Sum "
        "or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "matrix value",
        lambda tf: tf.grad_and_value(torch.neg)(BATCH),
        NotScalarError,
        "torchlayers: grad_and_value: neg must return a scalar tensor (no dimensions), got shape "
        "(3, 2). Sum or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "number output",
        lambda tf: tf.grad(lambda x: 1.0)(X),
        NotScalarError,
        "torchlayers: grad: <lambda> must return a scalar tensor (no dimensions), got float. A "
        "Python number has no derivative: return the tensor, without .item() or float().",
    ),
    Misuse(
        "None output",
        lambda tf: tf.grad(lambda x: None)(X),
        NotScalarError,
        "torchlayers: grad: <lambda> must return a scalar tensor (no dimensions), got NoneType. "
        "With has_aux=True it may return (tensor, anything).",
    ),
    Misuse(
        "tuple output",
        lambda tf: tf.grad(lambda x: (x.sum(), x))(X),
        NotScalarError,
        "torchlayers: grad: <lambda> must return a scalar tensor (no dimensions), got tuple. With "
        "has_aux=True it may return (tensor, anything).",
    ),
    Misuse(
        "complex output",
        lambda tf: tf.grad(torch.sum)(X.to(torch.complex64)),
        NotScalarError,
        "torchlayers: grad: sum must return a real tensor, got torch.complex64. Take .real or "
        ".abs().",
    ),
    Misuse(
        "complex value",
        lambda tf: tf.grad_and_value(lambda x: (x * 1j).sum())(X),
        NotScalarError,
        "torchlayers: grad_and_value: <lambda> must return a real tensor, got torch.complex64. "
        "Take .real or .abs().",
    ),
    Misuse(
        "output of a partial",
        lambda tf: tf.grad(functools.partial(torch.mul, X))(X),
        NotScalarError,
        "torchlayers: grad: functools.partial(mul, ...) must return a scalar tensor (no "
        "dimensions), got shape (3,). Sum or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "integer argument",
        lambda tf: tf.grad(torch.sum)(torch.arange(3)),
        DtypeError,
        "torchlayers: grad: can't differentiate with respect to argument 0, of dtype torch.int64: "
        "only floating-point and complex tensors have gradients. Convert it, or leave it out of "
        "argnums.",
    ),
    Misuse(
        "bool argument",
        lambda tf: tf.grad_and_value(torch.sum)(X > 1),
        DtypeError,
        "torchlayers: grad_and_value: can't differentiate with respect to argument 0, of dtype "
        "torch.bool: only floating-point and complex tensors have gradients. Convert it, or leave "
        "it out of argnums.",
    ),
    Misuse(
        "number argument",
        lambda tf: tf.grad(torch.sum)(1.0),
        NotTensorError,
        "torchlayers: grad: argument 0 must be a tensor to be differentiated, got float (1.0). "
        "Convert it to a tensor, or leave it out of argnums.",
    ),
    Misuse(
        "module argument",
        lambda tf: tf.grad(lambda net: ONE)(torch.nn.Linear(1, 1)),
        NotTensorError,
        "torchlayers: grad: argument 0 must be a tensor to be differentiated, got a module "
        "(Linear). Take its parameters as an argument: apply, params, buffers = "
        "torchlayers.functional(module).",
    ),
    Misuse(
        "None argument",
        lambda tf: tf.grad(lambda x: ONE)(None),
        NotTensorError,
        "torchlayers: grad: argument 0 must be a tensor to be differentiated, got NoneType (None). "
        "Convert it to a tensor, or leave it out of argnums.",
    ),
    Misuse(
        "list with a name",
        lambda tf: tf.grad(lambda x: x[0].sum())([X, "name"]),
        NotTensorError,
        "torchlayers: grad: argument 0, [1] must be a tensor to be differentiated, got str "
        "('name'). Convert it to a tensor, or leave it out of argnums.",
    ),
    Misuse(
        "dict with a number",
        lambda tf: tf.grad(lambda x: x["a"].sum())({"a": X, "b": 1}),
        NotTensorError,
        "torchlayers: grad: argument 0, ['b'] must be a tensor to be differentiated, got int (1). "
        "Convert it to a tensor, or leave it out of argnums.",
    ),
    Misuse(
        "a number deep in the second argument",
        lambda tf: tf.grad(lambda x, y: x.sum(), argnums=(1, 0))(X, {"a": X, "b": [1]}),
        NotTensorError,
        "torchlayers: grad: argument 1, ['b'][0] must be a tensor to be differentiated, got int "
        "(1). Convert it to a tensor, or leave it out of argnums.",
    ),
    Misuse(
        "a number like one not chosen",
        lambda tf: tf.grad(lambda x, y: ONE, argnums=1)(1, 1),
        NotTensorError,
        "torchlayers: grad: argument 1 must be a tensor to be differentiated, got int (1). Convert "
        "it to a tensor, or leave it out of argnums.",
    ),
    Misuse(
        "a number in a class registered without names",
        lambda tf: tf.grad(lambda x: ONE)(Pair(X, 1)),
        NotTensorError,
        "torchlayers: grad: argument 0, leaf 1 must be a tensor to be differentiated, got int (1). "
        "Convert it to a tensor, or leave it out of argnums.",
    ),
    Misuse(
        "has_aux without a pair",
        lambda tf: tf.grad(torch.sum, has_aux=True)(X),
        OutputError,
        f"torchlayers: grad: {SHOULD_BE_A_PAIR} Tensor.",
    ),
    Misuse(
        "has_aux with a triple",
        lambda tf: tf.grad(lambda x: (x.sum(), 1, 2), has_aux=True)(X),
        OutputError,
        f"torchlayers: grad: {SHOULD_BE_A_PAIR} a tuple of 3.",
    ),
    Misuse(
        "has_aux with a list",
        lambda tf: tf.grad_and_value(lambda x: [x.sum(), x], has_aux=True)(X),
        OutputError,
        f"torchlayers: grad_and_value: {SHOULD_BE_A_PAIR} list.",
    ),
    Misuse(
        "has_aux with a vector",
        lambda tf: tf.grad(lambda x: (x, x), has_aux=True)(X),
        NotScalarError,
        "torchlayers: grad: <lambda> must return a scalar tensor (no dimensions), got shape (3,). "
        "Sum or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "a value for a function",
        lambda tf: tf.grad(torch.sum(X))(X),
        CallError,
        "torchlayers: a transform takes a function, got Tensor. Pass the function itself: "
        "grad(f)(x) and vjp(f, x), not grad(f(x)).",
    ),
]


class TestGrad(MisuseTests):
    table = GRAD


WITH_A_VALUE = {
    "vjp": lambda x: tl.vjp(x, x),
    "jvp": lambda x: tl.jvp(x, (x,), (x,)),
    "linearize": lambda x: tl.linearize(x, x),
    "linear_transpose": lambda x: tl.linear_transpose(x, x),
    "jet": lambda x: tl.jet(x, (x,), ([x],)),
    "sparsity": lambda x: tl.sparsity(x, x),
    "make_graph": tl.make_graph,
}


@pytest.mark.parametrize("call", WITH_A_VALUE.values(), ids=WITH_A_VALUE)
def test_a_value_for_a_function_is_refused_in_all_calls(call):
    with pytest.raises(CallError, match=re.escape("a transform takes a function, got Tensor")):
        call(X)
    assert tl.current_stack() == ()
