"""Misuse: what is refused, in which words, and that nothing is left behind.

A message of ours says what is wrong, where, and what to do. Each is written out here, and
has to be what a program meets, to the letter. What torch itself says, or a tensor's own
method, is known here by its beginning.
"""

import dataclasses
import functools
import inspect
import re

import pytest
import torch
import torch.func
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from tests.helpers import Call, ambient, run
from torchlayers.errors import (
    ArgnumsError,
    CallError,
    DimensionError,
    DtypeError,
    FunctionError,
    MissingDerivativeError,
    NotScalarError,
    NotTensorError,
    OutDimError,
    OutputError,
    StructureError,
    TransformError,
)


@dataclasses.dataclass(frozen=True)
class Misuse:
    name: str
    call: Call
    error: type[Exception]
    message: str
    # What torch.func does, where it does not raise the same built-in exception, and why we do.
    torch_func: str = ""


X = torch.tensor([0.5, 1.0, 2.0])
ONE = torch.tensor(1.0)
FIRST = torch.tensor([0])
BATCH = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def loss(x, y):
    return (x * y).sum()


def batched(f):
    return lambda tf: tf.vmap(f)(BATCH)


def pull_back(tf, f, *args):
    """Calls the pullback that vjp gives of f."""
    return tf.vjp(f, X)[1](*args)


def pull_back_twice(tf):
    _, vjp_fn = tf.vjp(torch.sin, X)
    vjp_fn(X, retain_graph=False)
    vjp_fn(X)


def writing(write):
    """A function that writes to a tensor from outside."""
    captured = torch.ones(3)

    def f(x):
        write(captured, x)
        return (x * captured).sum()

    return f


def writing_to_the_outer_levels(tf):
    def f(x):
        y = x * 2
        return tf.grad(lambda z: y.mul_(z).sum())(x).sum()

    return tf.grad(f)(X)


def writing_unbatched(write):
    """A function that writes its sample into a tensor that is not batched."""
    captured = torch.ones(2)

    def f(x):
        write(captured, x)
        return captured

    return f


def loop(x):
    while x.sum() < 10:
        x = x * 2
    return x


def branch(x):
    if x.sum() > 4:
        return x
    return -x


def asserting(x):
    assert (x > 0).all()
    return x


def with_hooks(x):
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        return (x * x).sum()


def with_dual_level(x):
    with forward_ad.dual_level():
        return x.sum()


class WithoutSetupContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class WithBackwardOnly(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g * 2


def kept(tf, x):
    """What a vmap lets escape."""
    kept = []
    tf.vmap(lambda sample: kept.append(sample) or sample)(x)
    return kept[0]


class Pair:
    """A pytree whose leaves have no names."""

    def __init__(self, *values):
        self.values = values


pytree.register_pytree_node(
    Pair, lambda pair: (list(pair.values), None), lambda values, _: Pair(*values)
)


BEYOND = "but the call has 2 positional arguments (keyword arguments can't be chosen)."
ARGNUMS = [
    Misuse(
        name,
        lambda tf, argnums=argnums: tf.grad(loss, argnums=argnums)(X, X),
        ArgnumsError,
        f"torchlayers: grad: {message}",
    )
    for name, argnums, message in (
        ("beyond the last", 2, f"argnums=2 names argument 2, {BEYOND}"),
        ("before the first", -3, f"argnums=-3 names argument -3, {BEYOND}"),
        (
            "one of a tuple beyond the last",
            (0, 5),
            f"argnums=(0, 5) names argument 5, {BEYOND}",
        ),
        ("twice", (0, 0), "argnums=(0, 0) must be unique, but name an argument twice."),
        (
            "twice, counted from both ends",
            (1, -1),
            "argnums=(1, -1) must be unique, but name an argument twice.",
        ),
        ("empty", (), "argnums must name at least one argument, got ()."),
        ("a list", [0], "argnums must be an int or a tuple of ints, got list."),
        ("a name", "x", "argnums must be an int or a tuple of ints, got str."),
        ("a float", 0.0, "argnums must be an int or a tuple of ints, got float."),
        ("None", None, "argnums must be an int or a tuple of ints, got NoneType."),
        ("a tuple with a name", (0, "y"), "argnums must be made of ints, got 'y' in (0, 'y')."),
        ("a tuple with None", (None,), "argnums must be made of ints, got None in (None,)."),
    )
] + [
    Misuse(
        "one argument only",
        lambda tf: tf.grad_and_value(torch.sum, argnums=1)(X),
        ArgnumsError,
        "torchlayers: grad_and_value: argnums=1 names argument 1, but the call has 1 positional "
        "argument (keyword arguments can't be chosen).",
    ),
    Misuse(
        "no arguments",
        lambda tf: tf.grad(torch.sum)(),
        ArgnumsError,
        "torchlayers: grad: argnums=0 names argument 0, but the call has no positional arguments "
        "(keyword arguments can't be chosen).",
    ),
    Misuse(
        "keyword arguments only",
        lambda tf: tf.grad(torch.sum)(input=X),
        ArgnumsError,
        "torchlayers: grad: argnums=0 names argument 0, but the call has no positional arguments "
        "(keyword arguments can't be chosen).",
    ),
]


SHOULD_BE_A_PAIR = (
    "what the function returns should be a tuple: (output, aux) if has_aux is True, and it is"
)
GRAD = [
    Misuse(
        "vector output",
        lambda tf: tf.grad(torch.sin)(X),
        NotScalarError,
        "torchlayers: grad: sin must return a tensor without dimensions, got shape (3,). Sum "
        "or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "output of one element",
        lambda tf: tf.grad(torch.sin)(X[:1]),
        NotScalarError,
        "torchlayers: grad: sin must return a tensor without dimensions, got shape (1,). Sum "
        "or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "matrix value",
        lambda tf: tf.grad_and_value(torch.neg)(BATCH),
        NotScalarError,
        "torchlayers: grad_and_value: neg must return a tensor without dimensions, got shape "
        "(3, 2). Sum or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "number output",
        lambda tf: tf.grad(lambda x: 1.0)(X),
        NotScalarError,
        "torchlayers: grad: <lambda> must return a tensor without dimensions, got float. With "
        "has_aux=True it may return (tensor, anything).",
    ),
    Misuse(
        "None output",
        lambda tf: tf.grad(lambda x: None)(X),
        NotScalarError,
        "torchlayers: grad: <lambda> must return a tensor without dimensions, got NoneType. "
        "With has_aux=True it may return (tensor, anything).",
    ),
    Misuse(
        "tuple output",
        lambda tf: tf.grad(lambda x: (x.sum(), x))(X),
        NotScalarError,
        "torchlayers: grad: <lambda> must return a tensor without dimensions, got tuple. With "
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
        "torchlayers: grad: functools.partial(mul, ...) must return a tensor without "
        "dimensions, got shape (3,). Sum or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "integer argument",
        lambda tf: tf.grad(torch.sum)(torch.arange(3)),
        DtypeError,
        "torchlayers: grad: can't differentiate by argument 0, of dtype torch.int64: only "
        "floating-point and complex tensors have gradients. Convert it, or leave it out of "
        "argnums.",
    ),
    Misuse(
        "bool argument",
        lambda tf: tf.grad_and_value(torch.sum)(X > 1),
        DtypeError,
        "torchlayers: grad_and_value: can't differentiate by argument 0, of dtype torch.bool: "
        "only floating-point and complex tensors have gradients. Convert it, or leave it out of "
        "argnums.",
    ),
    Misuse(
        "number argument",
        lambda tf: tf.grad(torch.sum)(1.0),
        NotTensorError,
        "torchlayers: grad: argument 0 must be a tensor to differentiate by it, got float (1.0). "
        "Make it one, or leave it out of argnums.",
    ),
    Misuse(
        "None argument",
        lambda tf: tf.grad(lambda x: ONE)(None),
        NotTensorError,
        "torchlayers: grad: argument 0 must be a tensor to differentiate by it, got NoneType "
        "(None). Make it one, or leave it out of argnums.",
    ),
    Misuse(
        "list with a name",
        lambda tf: tf.grad(lambda x: x[0].sum())([X, "name"]),
        NotTensorError,
        "torchlayers: grad: argument 0, [1] must be a tensor to differentiate by it, got str "
        "('name'). Make it one, or leave it out of argnums.",
    ),
    Misuse(
        "dict with a number",
        lambda tf: tf.grad(lambda x: x["a"].sum())({"a": X, "b": 1}),
        NotTensorError,
        "torchlayers: grad: argument 0, ['b'] must be a tensor to differentiate by it, got int "
        "(1). Make it one, or leave it out of argnums.",
    ),
    Misuse(
        "a number deep in the second argument",
        lambda tf: tf.grad(lambda x, y: x.sum(), argnums=(1, 0))(X, {"a": X, "b": [1]}),
        NotTensorError,
        "torchlayers: grad: argument 1, ['b'][0] must be a tensor to differentiate by it, got int "
        "(1). Make it one, or leave it out of argnums.",
    ),
    Misuse(
        "a number like one not chosen",
        lambda tf: tf.grad(lambda x, y: ONE, argnums=1)(1, 1),
        NotTensorError,
        "torchlayers: grad: argument 1 must be a tensor to differentiate by it, got int (1). Make "
        "it one, or leave it out of argnums.",
    ),
    Misuse(
        "a number in a class registered without names",
        lambda tf: tf.grad(lambda x: ONE)(Pair(X, 1)),
        NotTensorError,
        "torchlayers: grad: argument 0, leaf 1 must be a tensor to differentiate by it, got int "
        "(1). Make it one, or leave it out of argnums.",
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
        "torchlayers: grad: <lambda> must return a tensor without dimensions, got shape (3,). "
        "Sum or average it, or use vjp or jacrev.",
    ),
    Misuse(
        "no function",
        lambda tf: tf.grad(1)(X),
        TypeError,
        "'int' object is not callable",
    ),
]

VJP = [
    Misuse(
        "integer output",
        lambda tf: tf.vjp(torch.argmax, X),
        OutputError,
        "torchlayers: vjp: All outputs of f must be floating-point or complex Tensors, got Tensor "
        "with dtype torch.int64. Return it as aux with has_aux=True.",
    ),
    Misuse(
        "number output",
        lambda tf: tf.vjp(lambda x: 1.0, X),
        OutputError,
        "torchlayers: vjp: the function must return only tensors, got float. With "
        "has_aux=True it may return (tensors, anything).",
    ),
    Misuse(
        "None output",
        lambda tf: tf.vjp(lambda x: None, X),
        OutputError,
        "torchlayers: vjp: the function must return only tensors, got NoneType. With "
        "has_aux=True it may return (tensors, anything).",
    ),
    Misuse(
        "output with a number",
        lambda tf: tf.vjp(lambda x: (x, 1), X),
        OutputError,
        "torchlayers: vjp: the function must return only tensors, got int. With has_aux=True "
        "it may return (tensors, anything).",
    ),
    Misuse(
        "empty output",
        lambda tf: tf.vjp(lambda x: (), X),
        OutputError,
        "torchlayers: vjp: the function returned nothing to differentiate.",
    ),
    Misuse(
        "integer primal",
        lambda tf: tf.vjp(torch.sin, torch.arange(3)),
        DtypeError,
        "torchlayers: vjp: can't differentiate by argument 0, of dtype torch.int64: only "
        "floating-point and complex tensors have gradients. Convert it, or bind it beforehand, "
        "with functools.partial or a lambda.",
    ),
    Misuse(
        "number primal",
        lambda tf: tf.vjp(torch.sin, 1.0),
        NotTensorError,
        "torchlayers: vjp: argument 0 must be a tensor to differentiate by it, got float (1.0). "
        "Make it one, or bind it beforehand, with functools.partial or a lambda.",
    ),
    Misuse(
        "None primal",
        lambda tf: tf.vjp(lambda x, y: x, X, None),
        NotTensorError,
        "torchlayers: vjp: argument 1 must be a tensor to differentiate by it, got NoneType "
        "(None). Make it one, or bind it beforehand, with functools.partial or a lambda.",
    ),
    Misuse(
        "has_aux without a pair",
        lambda tf: tf.vjp(torch.sin, X, has_aux=True),
        OutputError,
        f"torchlayers: vjp: {SHOULD_BE_A_PAIR} Tensor.",
    ),
    Misuse(
        "has_aux with a tuple of one",
        lambda tf: tf.vjp(lambda x: (x,), X, has_aux=True),
        OutputError,
        f"torchlayers: vjp: {SHOULD_BE_A_PAIR} a tuple of 1.",
    ),
    Misuse(
        "unknown option",
        lambda tf: tf.vjp(torch.sin, X, argnums=0),
        TypeError,
        "vjp() got an unexpected keyword argument 'argnums'",
    ),
]

COTANGENTS = [
    Misuse(
        "a tuple for a tensor",
        lambda tf: pull_back(tf, torch.sin, (X,)),
        StructureError,
        "torchlayers: vjp: the cotangents must have the structure of the output: got (*,) for * "
        "(* stands for a leaf).",
    ),
    Misuse(
        "a list for a tuple",
        lambda tf: pull_back(tf, lambda x: (x, x), [X, X]),
        StructureError,
        "torchlayers: vjp: the cotangents must have the structure of the output: got [*, *] for "
        "(*, *) (* stands for a leaf).",
    ),
    Misuse(
        "one for two",
        lambda tf: pull_back(tf, lambda x: (x, x), (X,)),
        StructureError,
        "torchlayers: vjp: the cotangents must have the structure of the output: got (*,) for (*, "
        "*) (* stands for a leaf).",
    ),
    Misuse(
        "another key",
        lambda tf: pull_back(tf, lambda x: {"a": x}, {"b": X}),
        StructureError,
        "torchlayers: vjp: the cotangents must have the structure of the output: got {'b': *} for "
        "{'a': *} (* stands for a leaf).",
    ),
    Misuse(
        "another shape",
        lambda tf: pull_back(tf, torch.sin, X[:2]),
        StructureError,
        "torchlayers: vjp: cotangent 0 has shape (2,), its output (3,): they must be the same.",
    ),
    Misuse(
        "a shape that broadcasts",
        lambda tf: pull_back(tf, torch.sin, ONE),
        StructureError,
        "torchlayers: vjp: cotangent 0 has shape (), its output (3,): they must be the same.",
    ),
    Misuse(
        "None",
        lambda tf: pull_back(tf, torch.sin, None),
        NotTensorError,
        "torchlayers: vjp: cotangent 0 must be a tensor like its output, got NoneType.",
    ),
    Misuse(
        "one of two None",
        lambda tf: pull_back(tf, lambda x: (x, x), (X, None)),
        NotTensorError,
        "torchlayers: vjp: cotangent 1 must be a tensor like its output, got NoneType.",
    ),
    Misuse(
        "a number",
        lambda tf: pull_back(tf, torch.sin, 1.0),
        NotTensorError,
        "torchlayers: vjp: cotangent 0 must be a tensor like its output, got float.",
    ),
    Misuse(
        "complex for real",
        lambda tf: pull_back(tf, torch.sin, X.to(torch.complex64)),
        StructureError,
        "torchlayers: vjp: cotangent 0 is torch.complex64, its output torch.float32: both must be "
        "real, or both complex.",
    ),
    Misuse(
        "one of two complex for real",
        lambda tf: pull_back(tf, lambda x: (x * 2, x * 3), (X, X.to(torch.complex64))),
        StructureError,
        "torchlayers: vjp: cotangent 1 is torch.complex64, its output torch.float32: both must be "
        "real, or both complex.",
    ),
    Misuse(
        "real for complex",
        lambda tf: pull_back(tf, lambda x: x * 1j, X),
        StructureError,
        "torchlayers: vjp: cotangent 0 is torch.float32, its output torch.complex64: both must be "
        "real, or both complex.",
    ),
    Misuse(
        "on another device",
        lambda tf: pull_back(tf, torch.sin, X.to("meta")),
        StructureError,
        "torchlayers: vjp: cotangent 0 is on meta, its output on cpu: they must be on one device.",
    ),
    Misuse(
        "missing",
        lambda tf: pull_back(tf, torch.sin),
        TypeError,
        "vjp_fn() missing 1 required positional argument: 'cotangents'",
    ),
    Misuse(
        "two arguments",
        lambda tf: pull_back(tf, lambda x: (x, x), X, X),
        CallError,
        "torchlayers: vjp: retain_graph must be a bool or None, got Tensor. vjp_fn takes one "
        "pytree of cotangents: where the function returned a tuple, pass a tuple, vjp_fn((a, b)).",
    ),
    Misuse(
        "two arguments for one tensor",
        lambda tf: pull_back(tf, torch.sin, X, X),
        CallError,
        "torchlayers: vjp: retain_graph must be a bool or None, got Tensor. vjp_fn takes one "
        "pytree of cotangents: where the function returned a tuple, pass a tuple, vjp_fn((a, b)).",
    ),
    Misuse(
        "three arguments",
        lambda tf: pull_back(tf, lambda x: (x, x, x), X, True, X),
        CallError,
        "torchlayers: vjp: create_graph must be a bool or None, got Tensor. vjp_fn takes one "
        "pytree of cotangents: where the function returned a tuple, pass a tuple, vjp_fn((a, b)).",
    ),
    Misuse(
        "a string as retain_graph",
        lambda tf: tf.vjp(torch.sin, X)[1](X, retain_graph="no"),
        CallError,
        "torchlayers: vjp: retain_graph must be a bool or None, got str. vjp_fn takes one pytree "
        "of cotangents: where the function returned a tuple, pass a tuple, vjp_fn((a, b)).",
    ),
    Misuse(
        "four arguments",
        lambda tf: pull_back(tf, torch.sin, X, X, X, X),
        TypeError,
        "vjp_fn() takes from 1 to 3 positional arguments but 4 were given",
    ),
    Misuse(
        "again, without retain_graph",
        lambda tf: pull_back_twice(tf),
        RuntimeError,
        "torchlayers: trying to go backward through the graph a second time, but what aten::sin "
        "had saved was freed after the first. Pass retain_graph=True to pull back through it "
        "again.",
    ),
]

JVP = [
    Misuse(
        "a tensor as primals",
        lambda tf: tf.jvp(torch.sin, X, X),
        StructureError,
        "torchlayers: jvp: primals must be a tuple, so that func(*primals) can be called; got "
        "Tensor. For one argument write (x,).",
    ),
    Misuse(
        "a list as primals",
        lambda tf: tf.jvp(torch.sin, [X], [X]),
        StructureError,
        "torchlayers: jvp: primals must be a tuple, so that func(*primals) can be called; got "
        "list. For one argument write (x,).",
    ),
    Misuse(
        "a tensor as tangents",
        lambda tf: tf.jvp(torch.sin, (X,), X),
        StructureError,
        "torchlayers: jvp: tangents must have the structure of the primals: got * for (*,) (* "
        "stands for a leaf).",
    ),
    Misuse(
        "a list as tangents",
        lambda tf: tf.jvp(torch.sin, (X,), [X]),
        StructureError,
        "torchlayers: jvp: tangents must have the structure of the primals: got [*] for (*,) (* "
        "stands for a leaf).",
    ),
    Misuse(
        "one tangent for two primals",
        lambda tf: tf.jvp(torch.mul, (X, X), (X,)),
        StructureError,
        "torchlayers: jvp: tangents must have the structure of the primals: got (*,) for (*, *) "
        "(* stands for a leaf).",
    ),
    Misuse(
        "None as a tangent",
        lambda tf: tf.jvp(torch.mul, (X, X), (X, None)),
        NotTensorError,
        "torchlayers: jvp: tangent 1 must be a tensor, got NoneType. Give zeros of its primal's "
        "shape (torch.zeros_like).",
    ),
    Misuse(
        "a number as a tangent",
        lambda tf: tf.jvp(torch.sin, (X,), (1.0,)),
        NotTensorError,
        "torchlayers: jvp: tangent 0 must be a tensor, got float. Give zeros of its primal's "
        "shape (torch.zeros_like).",
    ),
    Misuse(
        "a number as a primal",
        lambda tf: tf.jvp(torch.sin, (1.0,), (1.0,)),
        NotTensorError,
        "torchlayers: jvp: primal 0 must be a tensor, got float. Make it one, or bind it "
        "beforehand, with functools.partial or a lambda.",
    ),
    Misuse(
        "a primal with a name",
        lambda tf: tf.jvp(lambda x: x[0], ([X, "name"],), ([X, "name"],)),
        NotTensorError,
        "torchlayers: jvp: primal 0, [1] must be a tensor, got str. Make it one, or bind it "
        "beforehand, with functools.partial or a lambda.",
    ),
    Misuse(
        "a tangent of another shape",
        lambda tf: tf.jvp(torch.sin, (X,), (X[:2],)),
        StructureError,
        "torchlayers: jvp: tangent 0 has shape (2,), its primal (3,): they must be the same.",
    ),
    Misuse(
        "a tangent that broadcasts",
        lambda tf: tf.jvp(torch.mul, (X, X), (X, ONE)),
        StructureError,
        "torchlayers: jvp: tangent 1 has shape (), its primal (3,): they must be the same.",
    ),
    Misuse(
        "an integer primal",
        lambda tf: tf.jvp(torch.sin, (torch.arange(3),), (X,)),
        DtypeError,
        "torchlayers: jvp: primal 0 must be floating-point or complex, got torch.int64. Convert "
        "it, or bind it beforehand, with functools.partial or a lambda.",
    ),
    Misuse(
        "an integer tangent",
        lambda tf: tf.jvp(torch.sin, (X,), (torch.arange(3),)),
        DtypeError,
        "torchlayers: jvp: tangent 0 must be floating-point or complex, got torch.int64. Convert "
        "it to its primal's dtype.",
    ),
    Misuse(
        "a tangent on another device",
        lambda tf: tf.jvp(torch.sin, (X,), (X.to("meta"),)),
        StructureError,
        "torchlayers: jvp: tangent 0 is on meta, its primal on cpu: they must be on one device.",
    ),
    Misuse(
        "a tangent in a dict on another device",
        lambda tf: tf.jvp(lambda d: d["a"].sin(), ({"a": X},), ({"a": X.to("meta")},)),
        StructureError,
        "torchlayers: jvp: tangent 0, ['a'] is on meta, its primal on cpu: they must be on one "
        "device.",
    ),
    Misuse(
        "a tangent of another dtype where an operator needs one dtype",
        lambda tf: tf.jvp(torch.dot, (X, X), (X, X.double())),
        DtypeError,
        "torchlayers: jvp: tangent 1 is torch.float64, its primal torch.float32, and the function "
        "needs one dtype.",
    ),
    Misuse(
        "an expanded primal",
        lambda tf: tf.jvp(torch.sin, (ONE.expand(3),), (X,)),
        StructureError,
        "torchlayers: jvp: primal 0 is expanded: its elements share memory, and those of its "
        "tangent don't. Pass its clone().",
    ),
    Misuse(
        "no primals",
        lambda tf: tf.jvp(lambda: X, (), ()),
        StructureError,
        "torchlayers: jvp: primals must hold at least one tensor.",
    ),
    Misuse(
        "number output",
        lambda tf: tf.jvp(lambda x: 1.0, (X,), (X,)),
        OutputError,
        "torchlayers: jvp: the function must return only tensors, got float. With "
        "has_aux=True it may return (tensors, anything).",
    ),
    Misuse(
        "None output",
        lambda tf: tf.jvp(lambda x: None, (X,), (X,)),
        OutputError,
        "torchlayers: jvp: the function must return only tensors, got NoneType. With "
        "has_aux=True it may return (tensors, anything).",
    ),
    Misuse(
        "output with a number",
        lambda tf: tf.jvp(lambda x: (x, 1), (X,), (X,)),
        OutputError,
        "torchlayers: jvp: the function must return only tensors, got int. With has_aux=True "
        "it may return (tensors, anything).",
    ),
    Misuse(
        "empty output",
        lambda tf: tf.jvp(lambda x: (), (X,), (X,)),
        OutputError,
        "torchlayers: jvp: the function returned nothing to differentiate.",
    ),
    Misuse(
        "has_aux without a pair",
        lambda tf: tf.jvp(torch.sin, (X,), (X,), has_aux=True),
        OutputError,
        f"torchlayers: jvp: {SHOULD_BE_A_PAIR} Tensor.",
    ),
    Misuse(
        "has_aux with a triple",
        lambda tf: tf.jvp(lambda x: (x, x, x), (X,), (X,), has_aux=True),
        OutputError,
        f"torchlayers: jvp: {SHOULD_BE_A_PAIR} a tuple of 3.",
    ),
    Misuse(
        "one independent output under strict",
        lambda tf: tf.jvp(lambda x: {"a": x, "b": X * 2}, (X,), (X,), strict=True),
        OutputError,
        "torchlayers: jvp: output 1 is independent of the primals, which strict=True refuses. "
        "Without strict it has a tangent of zeros.",
    ),
    Misuse(
        "independent output under strict",
        lambda tf: tf.jvp(lambda x: X * 2, (X,), (X,), strict=True),
        OutputError,
        "torchlayers: jvp: output 0 is independent of the primals, which strict=True refuses. "
        "Without strict it has a tangent of zeros.",
    ),
]

IN_DIMS = [
    Misuse(
        "beyond the last",
        lambda tf: tf.vmap(torch.sin, in_dims=2)(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=2): in_dim 2 is out of range for argument 0 of shape (3, "
        "2): it must lie in [-2, 1].",
    ),
    Misuse(
        "before the first",
        lambda tf: tf.vmap(torch.sin, in_dims=-3)(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=-3): in_dim -3 is out of range for argument 0 of shape "
        "(3, 2): it must lie in [-2, 1].",
    ),
    Misuse(
        "beyond the last of one argument",
        lambda tf: tf.vmap(torch.mul, in_dims=(0, 1))(BATCH, X),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=(0, 1)): in_dim 1 is out of range for argument 1 of shape "
        "(3,): it must lie in [-1, 0].",
    ),
    Misuse(
        "a tensor without dimensions",
        lambda tf: tf.vmap(torch.sin)(ONE),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=0): argument 0 has no dimensions, so in_dim 0 is out of "
        "range. Give None for it, or a tensor with a batch dimension.",
    ),
    Misuse(
        "a dimension short for a nest",
        lambda tf: tf.vmap(tf.vmap(torch.sin))(X),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=0): argument 0 has no dimensions, so in_dim 0 is out of "
        "range. Give None for it, or a tensor with a batch dimension.",
    ),
    Misuse(
        "None",
        lambda tf: tf.vmap(torch.sin, in_dims=None)(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=None): in_dims must be an int or a tuple that fits the "
        "arguments, got NoneType.",
    ),
    Misuse(
        "None for all",
        lambda tf: tf.vmap(torch.mul, in_dims=(None, None))(BATCH, BATCH),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=(None, None)): no argument is batched: at least one "
        "in_dim must be an int.",
    ),
    Misuse(
        "a list",
        lambda tf: tf.vmap(torch.sin, in_dims=[0])(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=[0]): in_dims must be an int or a tuple that fits the "
        "arguments, got list. For one argument write ([0],).",
    ),
    Misuse(
        "a dict",
        lambda tf: tf.vmap(torch.sin, in_dims={"x": 0})(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims={'x': 0}): in_dims must be an int or a tuple that "
        "fits the arguments, got dict. For one argument write ({'x': 0},).",
    ),
    Misuse(
        "a string",
        lambda tf: tf.vmap(torch.sin, in_dims="0")(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims='0'): in_dims must be an int or a tuple that fits the "
        "arguments, got str.",
    ),
    Misuse(
        "a float",
        lambda tf: tf.vmap(torch.sin, in_dims=0.0)(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=0.0): in_dims must be an int or a tuple that fits the "
        "arguments, got float.",
    ),
    Misuse(
        "a float for one argument",
        lambda tf: tf.vmap(torch.mul, in_dims=(0, 0.5))(BATCH, BATCH),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=(0, 0.5)): in_dim 0.5 of argument 1 must be an int or "
        "None.",
    ),
    Misuse(
        "a string for one argument",
        lambda tf: tf.vmap(torch.mul, in_dims=(0, "b"))(BATCH, BATCH),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=(0, 'b')): in_dim 'b' of argument 1 must be an int or "
        "None.",
    ),
    Misuse(
        "too many",
        lambda tf: tf.vmap(torch.sin, in_dims=(0, 0))(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=(0, 0)): in_dims don't fit the arguments: in_dims are (*, "
        "*), the arguments (*,) (* stands for a leaf).",
    ),
    Misuse(
        "too few",
        lambda tf: tf.vmap(torch.mul, in_dims=(0,))(BATCH, BATCH),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=(0,)): in_dims don't fit the arguments: in_dims are (*,), "
        "the arguments (*, *) (* stands for a leaf).",
    ),
    Misuse(
        "empty",
        lambda tf: tf.vmap(torch.sin, in_dims=())(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=()): in_dims don't fit the arguments: in_dims are (), the "
        "arguments (*,) (* stands for a leaf).",
    ),
    Misuse(
        "a tuple for a tensor",
        lambda tf: tf.vmap(torch.sin, in_dims=((0,),))(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=((0,),)): in_dims don't fit the arguments: in_dims are "
        "((*,),), the arguments (*,) (* stands for a leaf).",
    ),
    Misuse(
        "another key",
        lambda tf: tf.vmap(lambda d: d["x"], in_dims=({"y": 0},))({"x": BATCH}),
        DimensionError,
        "torchlayers: vmap(<lambda>, in_dims=({'y': 0},)): in_dims don't fit the arguments: "
        "in_dims are ({'y': *},), the arguments ({'x': *},) (* stands for a leaf).",
    ),
    Misuse(
        "a list for a tuple",
        lambda tf: tf.vmap(lambda t: t[0], in_dims=([0],))((BATCH,)),
        DimensionError,
        "torchlayers: vmap(<lambda>, in_dims=([0],)): in_dims don't fit the arguments: in_dims "
        "are ([*],), the arguments ((*,),) (* stands for a leaf).",
    ),
    Misuse(
        "a number argument",
        lambda tf: tf.vmap(torch.mul)(BATCH, 2.0),
        NotTensorError,
        "torchlayers: vmap(mul, in_dims=0): in_dim 0 was given for argument 1, a float: only "
        "tensors can be batched. Give None for it.",
    ),
    Misuse(
        "a None argument",
        lambda tf: tf.vmap(lambda x, y: x)(BATCH, None),
        NotTensorError,
        "torchlayers: vmap(<lambda>, in_dims=0): in_dim 0 was given for argument 1, a NoneType: "
        "only tensors can be batched. Give None for it.",
    ),
    Misuse(
        "a name in a list",
        lambda tf: tf.vmap(lambda x: x[0], in_dims=([0, 1],))([BATCH, "name"]),
        NotTensorError,
        "torchlayers: vmap(<lambda>, in_dims=([0, 1],)): in_dim 1 was given for argument 0, [1], "
        "a str: only tensors can be batched. Give None for it.",
    ),
    Misuse(
        "beyond the last of a tensor in a dict",
        lambda tf: tf.vmap(lambda x, d: x, in_dims=(0, 1))(BATCH, {"a": BATCH, "b": [X]}),
        DimensionError,
        "torchlayers: vmap(<lambda>, in_dims=(0, 1)): in_dim 1 is out of range for argument 1, "
        "['b'][0] of shape (3,): it must lie in [-1, 0].",
    ),
    Misuse(
        "batches of different sizes",
        lambda tf: tf.vmap(torch.mul)(BATCH, BATCH[:2]),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=0): Expected all tensors to have the same size in the "
        "mapped dimension, but argument 0 has 3 in dim 0 and argument 1 has 2 in dim 0.",
    ),
    Misuse(
        "different sizes in different dimensions",
        lambda tf: tf.vmap(torch.mul, in_dims=(0, 1))(BATCH, BATCH),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=(0, 1)): Expected all tensors to have the same size "
        "in the mapped dimension, but argument 0 has 3 in dim 0 and argument 1 has 2 in dim 1.",
    ),
    Misuse(
        "different sizes in a dict",
        lambda tf: tf.vmap(lambda d: d["a"])({"a": BATCH, "b": BATCH[:1]}),
        DimensionError,
        "torchlayers: vmap(<lambda>, in_dims=0): Expected all tensors to have the same size in "
        "the mapped dimension, but argument 0, ['a'] has 3 in dim 0 and argument 0, ['b'] has 1 in "
        "dim 0.",
    ),
]

OUT_DIMS = [
    Misuse(
        "beyond the last",
        lambda tf: tf.vmap(torch.sin, out_dims=2)(BATCH),
        OutDimError,
        "torchlayers: vmap(sin, out_dims=2): out_dim 2 is out of range for a result that has 2 "
        "dimensions with the batch's: it must lie in [-2, 1].",
    ),
    Misuse(
        "before the first",
        lambda tf: tf.vmap(torch.sin, out_dims=-3)(BATCH),
        OutDimError,
        "torchlayers: vmap(sin, out_dims=-3): out_dim -3 is out of range for a result that has 2 "
        "dimensions with the batch's: it must lie in [-2, 1].",
    ),
    Misuse(
        "beyond the last, not batched",
        lambda tf: tf.vmap(lambda x: X, out_dims=2)(BATCH),
        OutDimError,
        "torchlayers: vmap(<lambda>, out_dims=2): out_dim 2 is out of range for a result that has "
        "2 dimensions with the batch's: it must lie in [-2, 1].",
        torch_func="gives a tensor of a senseless size",
    ),
    Misuse(
        "a string",
        lambda tf: tf.vmap(torch.sin, out_dims="0")(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims='0'): out_dims must be an int, None or a pytree of "
        "these, got '0'.",
    ),
    Misuse(
        "a float",
        lambda tf: tf.vmap(torch.sin, out_dims=(0.5,))(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims=(0.5,)): out_dims must be an int, None or a pytree "
        "of these, got 0.5.",
    ),
    Misuse(
        "two for a tensor",
        lambda tf: tf.vmap(torch.sin, out_dims=(0, 0))(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims=(0, 0)): out_dims don't fit the results: out_dims are "
        "(*, *), the results * (* stands for a leaf).",
    ),
    Misuse(
        "none for a tensor",
        lambda tf: tf.vmap(torch.sin, out_dims=())(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims=()): out_dims don't fit the results: out_dims are (), "
        "the results * (* stands for a leaf).",
    ),
    Misuse(
        "a dict for a tensor",
        lambda tf: tf.vmap(torch.sin, out_dims={"a": 0})(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims={'a': 0}): out_dims don't fit the results: out_dims are "
        "{'a': *}, the results * (* stands for a leaf).",
    ),
    Misuse(
        "a list for a tensor",
        lambda tf: tf.vmap(torch.sin, out_dims=[0])(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims=[0]): out_dims don't fit the results: out_dims are [*], "
        "the results * (* stands for a leaf).",
    ),
    Misuse(
        "one for two",
        lambda tf: tf.vmap(lambda x: (x, x), out_dims=(0,))(BATCH),
        DimensionError,
        "torchlayers: vmap(<lambda>, out_dims=(0,)): out_dims don't fit the results: out_dims are "
        "(*,), the results (*, *) (* stands for a leaf).",
    ),
    Misuse(
        "three for two",
        lambda tf: tf.vmap(lambda x: (x, x), out_dims=(0, 0, 0))(BATCH),
        DimensionError,
        "torchlayers: vmap(<lambda>, out_dims=(0, 0, 0)): out_dims don't fit the results: "
        "out_dims are (*, *, *), the results (*, *) (* stands for a leaf).",
    ),
    Misuse(
        "a list for a tuple",
        lambda tf: tf.vmap(lambda x: (x, x), out_dims=[0, 0])(BATCH),
        DimensionError,
        "torchlayers: vmap(<lambda>, out_dims=[0, 0]): out_dims don't fit the results: out_dims "
        "are [*, *], the results (*, *) (* stands for a leaf).",
    ),
    Misuse(
        "a tuple in a one-tuple",
        lambda tf: tf.vmap(torch.sin, out_dims=((0,),))(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims=((0,),)): out_dims don't fit the results: out_dims are "
        "((*,),), the results * (* stands for a leaf).",
        torch_func="TypeError, from a binding to C++",
    ),
    Misuse(
        "None for a batched result",
        lambda tf: tf.vmap(torch.sin, out_dims=None)(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims=None): a result whose out_dim is None depends on the "
        "batch. Give an int for it.",
    ),
    Misuse(
        "None for one batched result",
        lambda tf: tf.vmap(lambda x: {"a": x, "b": x}, out_dims={"a": 0, "b": None})(BATCH),
        DimensionError,
        "torchlayers: vmap(<lambda>, out_dims={'a': 0, 'b': None}): a result whose out_dim is "
        "None depends on the batch. Give an int for it.",
    ),
]


def no_rule(op):
    return (
        f"torchlayers: vmap (level 1): Batching rule not implemented for {op}. Loop over the "
        "samples and torch.stack what they give, or write it with other operators."
    )


LSTM, GRU, RNN = nn.LSTM(2, 4), nn.GRU(2, 4), nn.RNN(2, 4)
BATCH_NORM = nn.BatchNorm1d(2)
VMAP = [
    Misuse(
        "no arguments",
        lambda tf: tf.vmap(lambda: X)(),
        DimensionError,
        "torchlayers: vmap(<lambda>, in_dims=0): got no positional arguments, so there is "
        "nothing to batch.",
    ),
    Misuse(
        "keyword arguments only",
        lambda tf: tf.vmap(torch.sin)(input=BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=0): got no positional arguments, so there is nothing "
        "to batch.",
    ),
    Misuse(
        "an empty tuple",
        lambda tf: tf.vmap(lambda x: X)(()),
        DimensionError,
        "torchlayers: vmap(<lambda>, in_dims=0): no argument is batched: at least one in_dim "
        "must be an int.",
    ),
    Misuse(
        "number output",
        lambda tf: tf.vmap(lambda x: 1.0)(BATCH),
        NotTensorError,
        "torchlayers: vmap(<lambda>): the function must return only tensors, got float. Give "
        "out_dims=None for it to return it as it is.",
    ),
    Misuse(
        "None output",
        lambda tf: tf.vmap(lambda x: None)(BATCH),
        NotTensorError,
        "torchlayers: vmap(<lambda>): the function must return only tensors, got NoneType. A "
        "function that only has side effects returns nothing to batch: give out_dims=None.",
    ),
    Misuse(
        "output with None",
        lambda tf: tf.vmap(lambda x: (x, None))(BATCH),
        NotTensorError,
        "torchlayers: vmap(<lambda>): the function must return only tensors, got NoneType. Give "
        "out_dims=None for it to return it as it is.",
    ),
    Misuse(
        "output with a name",
        lambda tf: tf.vmap(lambda x: (x, "name"))(BATCH),
        NotTensorError,
        "torchlayers: vmap(<lambda>): the function must return only tensors, got str. Give "
        "out_dims=None for it to return it as it is.",
    ),
    Misuse(
        "the length of a sample",
        lambda tf: tf.vmap(len)(BATCH),
        NotTensorError,
        "torchlayers: vmap(len): the function must return only tensors, got int. Give "
        "out_dims=None for it to return it as it is.",
    ),
    Misuse(
        "unknown randomness",
        lambda tf: tf.vmap(torch.sin, randomness="never"),
        TransformError,
        "torchlayers: vmap: randomness must be 'error', 'same' or 'different', got 'never'.",
    ),
    Misuse(
        "None as randomness",
        lambda tf: tf.vmap(torch.sin, randomness=None),
        TransformError,
        "torchlayers: vmap: randomness must be 'error', 'same' or 'different', got None.",
    ),
    Misuse(
        "chunk_size of zero",
        lambda tf: tf.vmap(torch.sin, chunk_size=0),
        ValueError,
        "torchlayers: vmap: chunk_size must be None, 'auto' or an int greater than 0, got 0.",
    ),
    Misuse(
        "negative chunk_size",
        lambda tf: tf.vmap(torch.sin, chunk_size=-2),
        ValueError,
        "torchlayers: vmap: chunk_size must be None, 'auto' or an int greater than 0, got -2.",
    ),
    Misuse(
        "a float as chunk_size",
        lambda tf: tf.vmap(torch.sin, chunk_size=1.5)(BATCH),
        TypeError,
        "torchlayers: vmap: chunk_size must be None, 'auto' or an int greater than 0, got 1.5.",
    ),
    Misuse(
        "a string as chunk_size",
        lambda tf: tf.vmap(torch.sin, chunk_size="2"),
        TypeError,
        "torchlayers: vmap: chunk_size must be None, 'auto' or an int greater than 0, got '2'.",
    ),
    Misuse(
        "a bool as chunk_size",
        lambda tf: tf.vmap(torch.sin, chunk_size=True)(BATCH),
        TypeError,
        "torchlayers: vmap: chunk_size must be None, 'auto' or an int greater than 0, got True.",
    ),
    Misuse(
        "no function",
        lambda tf: tf.vmap(1)(BATCH),
        TypeError,
        "'int' object is not callable",
    ),
    Misuse(
        "an operator without a rule",
        lambda tf: tf.vmap(torch.equal, in_dims=(0, None))(BATCH, BATCH[0]),
        RuntimeError,
        no_rule("aten::equal"),
    ),
    Misuse("an LSTM", batched(lambda x: LSTM(x[None])), RuntimeError, no_rule("aten::lstm.input")),
    Misuse("a GRU", batched(lambda x: GRU(x[None])), RuntimeError, no_rule("aten::gru.input")),
    Misuse(
        "an RNN", batched(lambda x: RNN(x[None])), RuntimeError, no_rule("aten::rnn_tanh.input")
    ),
    Misuse(
        "batch norm in training",
        lambda tf: tf.vmap(BATCH_NORM)(BATCH[None]),
        RuntimeError,
        "torchlayers: vmap (level 1) can't update the running statistics of a batch norm "
        "(aten::batch_norm): they are not batched, and each of the 1 samples has its own. Give the "
        "layer none (torchlayers.replace_all_batch_norm_modules_, or track_running_stats=False), "
        "or put the module into eval mode.",
    ),
    Misuse(
        "a Function without vmap",
        lambda tf: tf.vmap(WithBackwardOnly.apply)(BATCH),
        FunctionError,
        "torchlayers: vmap does not know how to batch WithBackwardOnly. If its methods use torch's "
        "operators alone, set WithBackwardOnly.generate_vmap_rule = True; else give it a vmap "
        "staticmethod.",
    ),
]

JACOBIAN = [
    Misuse(
        "jacrev: a number argument",
        lambda tf: tf.jacrev(lambda x, y: x, argnums=1)(X, 1.0),
        NotTensorError,
        "torchlayers: jacrev: argument 1 must be a tensor to differentiate by it, got float (1.0). "
        "Make it one, or leave it out of argnums.",
    ),
    Misuse(
        "jacfwd: a number argument",
        lambda tf: tf.jacfwd(lambda x, y: x, argnums=1)(X, 1.0),
        NotTensorError,
        "torchlayers: jacfwd: argument 1 must be a tensor to differentiate by it, got float (1.0). "
        "Make it one, or leave it out of argnums.",
        torch_func="AttributeError, from asking it for numel",
    ),
    Misuse(
        "jacrev: an integer argument",
        lambda tf: tf.jacrev(torch.mul, argnums=1)(X, torch.arange(3)),
        DtypeError,
        "torchlayers: jacrev: can't differentiate by argument 1, of dtype torch.int64: only "
        "floating-point and complex tensors have gradients. Convert it, or leave it out of "
        "argnums.",
    ),
    Misuse(
        "jacfwd: no tensor in the argument",
        lambda tf: tf.jacfwd(torch.sin)({}),
        StructureError,
        "torchlayers: jacfwd: the arguments hold no tensor to differentiate by.",
        torch_func="AssertionError, from its own check",
    ),
    Misuse(
        "jacfwd: an integer argument",
        lambda tf: tf.jacfwd(torch.mul, argnums=1)(X, torch.arange(3)),
        DtypeError,
        "torchlayers: jacfwd: argument 1 must be floating-point or complex, got torch.int64. "
        "Convert it, or leave it out of argnums.",
    ),
    Misuse(
        "jacrev: a complex argument",
        lambda tf: tf.jacrev(lambda x: x["a"])({"a": X.to(torch.complex64)}),
        DtypeError,
        "torchlayers: jacrev: Expected all inputs to be real but received complex numbers "
        "(torch.complex64) as argument 0, ['a']. Pass real and imaginary parts "
        "(torch.view_as_real).",
    ),
    Misuse(
        "jacfwd: a complex output",
        lambda tf: tf.jacfwd(lambda x: x * 1j)(X),
        DtypeError,
        "torchlayers: jacfwd: Expected all outputs to be real but received complex numbers "
        "(torch.complex64) as output 0. Pass real and imaginary parts (torch.view_as_real).",
    ),
    Misuse(
        "jacfwd: an expanded argument",
        lambda tf: tf.jacfwd(torch.mul, argnums=1)(X, ONE.expand(3)),
        StructureError,
        "torchlayers: jacfwd: argument 1 is expanded: its elements share memory, and those of its "
        "tangent don't. Pass its clone().",
    ),
    Misuse(
        "jacrev: argnums beyond the last",
        lambda tf: tf.jacrev(torch.sin, argnums=1)(X),
        ArgnumsError,
        "torchlayers: jacrev: argnums=1 names argument 1, but the call has 1 positional argument "
        "(keyword arguments can't be chosen).",
    ),
    Misuse(
        "jacrev: number output",
        lambda tf: tf.jacrev(lambda x: 1.0)(X),
        OutputError,
        "torchlayers: jacrev: the function must return only tensors, got float. With has_aux=True "
        "it may return (tensors, anything).",
    ),
    Misuse(
        "jacfwd: has_aux without a pair",
        lambda tf: tf.jacfwd(torch.sin, has_aux=True)(X),
        OutputError,
        f"torchlayers: jacfwd: {SHOULD_BE_A_PAIR} Tensor.",
    ),
    Misuse(
        "jacrev: a string as chunk_size",
        lambda tf: tf.jacrev(torch.sin, chunk_size="2"),
        TypeError,
        "torchlayers: jacrev: chunk_size must be None, 'auto' or an int greater than 0, got '2'.",
    ),
]

ONE_NUMBER = (
    "torchlayers: vmap (level 1) can't make one Python number of a batched tensor: it holds 3 "
    "values. vmap: It looks like you're calling .item() on a Tensor, or attempting to use a Tensor "
    "in some data-dependent control flow (bool(), if, while). Use torch.where or torch.stack, or "
    "return the value and look at it after vmap."
)


def no_memory(layer="vmap (level 1)", held="3 samples at once"):
    return (
        f"torchlayers: {layer} has no memory to give to tolist(), numpy() or data_ptr(): inside it "
        f"a tensor is {held} (Cannot access data pointer of Tensor that doesn't have storage). "
        "Return the tensor, and convert it outside."
    )


NUMBERS = [
    Misuse(name, batched(f), RuntimeError, ONE_NUMBER)
    for name, f in {
        "item": lambda x: x.sum().item(),
        "float": lambda x: float(x.sum()),
        "int": lambda x: int(x.sum()),
        "complex": lambda x: complex(x.sum()),
        "bool": lambda x: bool(x.sum()),
        "if": branch,
        "while": loop,
        "assert": asserting,
        "is_nonzero": lambda x: x[0].is_nonzero(),
        "max of Python": lambda x: max(x[0], x[1]),
        "in": lambda x: x[0] in [1.0, 2.0],
        "the index of a list": lambda x: [1, 2][x[0].long()],
        "range": lambda x: range(x[0].long()),
        "format": lambda x: f"{x.sum():.2f}",
        "a size": lambda x: torch.zeros(x[0].long()),
        "a slice": lambda x: x[: x[0].long()],
        "a number of an operator": lambda x: torch.add(x, x, alpha=x.sum()),
    }.items()
] + [
    Misuse(
        "in grad in vmap",
        lambda tf: tf.vmap(tf.grad(lambda x: x.sum() * x.sum().item()))(BATCH),
        RuntimeError,
        ONE_NUMBER,
    ),
    Misuse(
        "in vmap in grad",
        lambda tf: tf.grad(lambda x: tf.vmap(branch)(x).sum())(BATCH),
        RuntimeError,
        ONE_NUMBER.replace("level 1", "level 2"),
    ),
    Misuse("tolist", batched(lambda x: x.tolist()), TransformError, no_memory()),
    Misuse("numpy", batched(lambda x: x.numpy()), TransformError, no_memory()),
    Misuse("data_ptr", batched(lambda x: x.data_ptr()), TransformError, no_memory()),
    Misuse(
        "tolist in vmap in grad",
        lambda tf: tf.grad(lambda x: tf.vmap(lambda x: torch.tensor(x.tolist()))(x).sum())(BATCH),
        TransformError,
        no_memory("vmap (level 2)"),
    ),
    Misuse(
        "tolist in grad in vmap",
        lambda tf: tf.vmap(tf.grad(lambda x: torch.tensor(x.tolist()).sum()))(BATCH),
        TransformError,
        no_memory("grad (level 2)", "a wrapper around its value"),
    ),
    Misuse(
        "torch.tensor of a list of tensors",
        batched(lambda x: torch.tensor([x[0], x[1]])),
        RuntimeError,
        ONE_NUMBER,
    ),
    Misuse(
        "allclose",
        batched(lambda x: torch.allclose(x, x)),
        RuntimeError,
        "torchlayers: vmap (level 1) can't make one Python bool of 3 samples (aten::allclose). Use "
        "torch.isclose(x, y).all(), and look at it after vmap.",
    ),
]


def own_size(op):
    return (
        f"torchlayers: vmap (level 1) can't run {op}: each sample's result would have a size of "
        "its own. Use torch.where(mask, x, 0), or do it outside vmap."
    )


DYNAMIC_SHAPES = [
    Misuse(
        "nonzero",
        lambda tf: tf.vmap(torch.nonzero)(BATCH),
        RuntimeError,
        own_size("aten::nonzero"),
    ),
    Misuse(
        "where with a condition only",
        lambda tf: tf.vmap(lambda x: torch.where(x > 1))(BATCH),
        RuntimeError,
        own_size("aten::where"),
    ),
    Misuse(
        "a mask as an index",
        lambda tf: tf.vmap(lambda x: x[x > 1])(BATCH),
        RuntimeError,
        own_size("aten::index.Tensor"),
    ),
    Misuse(
        "masked_select",
        lambda tf: tf.vmap(lambda x: x.masked_select(x > 1))(BATCH),
        RuntimeError,
        own_size("aten::masked_select"),
    ),
    Misuse(
        "unique",
        lambda tf: tf.vmap(torch.unique)(BATCH),
        RuntimeError,
        own_size("aten::_unique2"),
    ),
    Misuse(
        "one_hot without num_classes",
        lambda tf: tf.vmap(lambda x: torch.nn.functional.one_hot(x.long()))(BATCH),
        RuntimeError,
        "torchlayers: vmap (level 1) can't run aten::one_hot on a batch of 3 samples (self (2,)): "
        "When vmap-ing torch.nn.functional.one_hot, please provide an explicit positive "
        "num_classes argument.",
    ),
]


def on_a_sample(op, shapes, words, level=1):
    return f"torchlayers: vmap (level {level}) can't run {op} on a sample ({shapes}): {words}."


MATRICES = torch.ones(5, 2, 3)
THREE = torch.ones(3)
BEYOND_THE_ONE = "Dimension out of range (expected to be in range of [-1, 0], but got 1)"
UNEQUAL = (
    "The size of tensor a (2) must match the size of tensor b (3) at non-singleton dimension 0"
)
MV = on_a_sample(
    "aten::mv", "self (2, 3), vec (2,)", "size mismatch, got input (2), mat (2x3), vec (2)"
)
SHAPES = [
    Misuse(name, batched(f), error, on_a_sample(op, shapes, words))
    for name, f, error, op, shapes, words in (
        ("a sum that does not broadcast", lambda x: x + THREE, RuntimeError, "aten::add.Tensor",
         "self (2,), other (3,)", UNEQUAL),
        ("the same in place", lambda x: x.clone().add_(THREE), RuntimeError, "aten::add_.Tensor",
         "self (2,), other (3,)", UNEQUAL),
        ("a view of another size", lambda x: x.view(3), RuntimeError, "aten::view", "self (2,)",
         "shape '[3]' is invalid for input of size 2"),
        ("a shape of another size", lambda x: x.reshape(3, -1), RuntimeError, "aten::reshape",
         "self (2,)", "shape '[3, -1]' is invalid for input of size 2"),
        ("cat of two ranks", lambda x: torch.cat([x, x[None]]), RuntimeError, "aten::cat",
         "tensors (2,), (1, 2)", "Tensors must have same number of dimensions: got 1 and 2"),
        ("stack of two sizes", lambda x: torch.stack([x, x[:1]]), RuntimeError, "aten::stack",
         "tensors (2,), (1,)",
         "stack expects each tensor to be equal size, but got [2] at entry 0 and [1] at entry 1"),
        ("linear of another width", lambda x: nn.functional.linear(x, torch.ones(5, 4)),
         RuntimeError, "aten::linear", "input (2,), weight (5, 4)",
         "mat1 and mat2 shapes cannot be multiplied (1x2 and 4x5)"),
        ("softmax of a dimension too far", lambda x: x.softmax(1), IndexError, "aten::softmax.int",
         "self (2,)", BEYOND_THE_ONE),
        ("transpose of a dimension too far", lambda x: x.transpose(0, 1), IndexError,
         "aten::transpose.int", "self (2,)", BEYOND_THE_ONE),
        ("a row expanded", lambda x: x.expand(3), RuntimeError, "aten::expand", "self (2,)",
         "The expanded size of the tensor (3) must match the existing size (2) at non-singleton "
         "dimension 0.  Target sizes: [3].  Tensor sizes: [2]"),
    )
] + [
    Misuse(
        "a product that does not fit",
        lambda tf: tf.vmap(torch.mv)(MATRICES, MATRICES[:, :, 0]),
        RuntimeError, MV,
    ),
    Misuse(
        "in grad in vmap",
        lambda tf: tf.vmap(tf.grad(lambda x: torch.mv(x, BATCH[0]).sum()))(MATRICES),
        RuntimeError, MV,
    ),
    Misuse(
        "in vmap in grad",
        lambda tf: tf.grad(lambda x: tf.vmap(lambda x: torch.mv(x, BATCH[0]))(x).sum())(MATRICES),
        RuntimeError, MV.replace("level 1", "level 2"),
    ),
    Misuse(
        "in vmap in vmap",
        lambda tf: tf.vmap(lambda x: tf.vmap(lambda y: torch.mv(x, y))(BATCH))(MATRICES),
        RuntimeError, MV.replace("level 1", "level 2"),
    ),
    Misuse(
        "values that one sample alone has",
        lambda tf: tf.vmap(torch.linalg.inv)(torch.stack([torch.eye(2), torch.zeros(2, 2)])),
        torch.linalg.LinAlgError,
        "torchlayers: vmap (level 1) can't run aten::linalg_inv on a batch of 2 samples (A (2, 2)):"
        " linalg.inv: (Batch element 1): The diagonal element 1 is zero, the inversion could not "
        "be completed because the input matrix is singular.",
    ),
    Misuse(
        "an index out of range",
        lambda tf: tf.vmap(nn.functional.embedding, in_dims=(0, None))(
            torch.tensor([[0], [5]]), BATCH
        ),
        IndexError,
        "torchlayers: vmap (level 1) can't run aten::embedding on a batch of 2 samples (weight "
        "(3, 2), indices (1,)): index out of range in self.",
    ),
]  # fmt: skip


def random(op, level=1):
    return (
        "vmap: called random operation while in randomness error mode. torchlayers: vmap (level "
        f"{level}) called the random operator {op} with randomness='error'. Give vmap "
        "randomness='different', for numbers of its own for each sample, or 'same'."
    )


RANDOM = [
    Misuse(
        name,
        batched(f),
        RuntimeError,
        random(op),
    )
    for name, (op, f) in {
        "rand": ("aten::rand", lambda x: x + torch.rand(2)),
        "randn_like": ("aten::randn_like", torch.randn_like),
        "dropout": ("aten::bernoulli.p", torch.nn.functional.dropout),
        "bernoulli": ("aten::bernoulli", torch.bernoulli),
        "randperm": ("aten::randperm", lambda x: torch.randperm(3)),
        "normal_ on a sample": ("aten::normal_", lambda x: x.clone().normal_()),
        "uniform_ on a tensor not batched": ("aten::uniform_", lambda x: torch.empty(2).uniform_()),
        "multinomial": ("aten::multinomial", lambda x: torch.multinomial(x, 1)),
    }.items()
] + [
    Misuse(
        "allowed outside only",
        lambda tf: tf.vmap(tf.vmap(torch.rand_like), randomness="same")(BATCH),
        RuntimeError,
        random("aten::rand_like", level=2),
    ),
    Misuse(
        "allowed inside only",
        lambda tf: tf.vmap(tf.vmap(torch.rand_like, randomness="same"))(BATCH),
        RuntimeError,
        random("aten::rand_like", level=1),
    ),
    Misuse(
        "different in a tensor not batched",
        lambda tf: tf.vmap(lambda x: X.clone().uniform_(), randomness="different")(BATCH),
        RuntimeError,
        "torchlayers: vmap (level 1) can't fill a tensor that is not batched with random numbers "
        "that differ between samples (aten::uniform_). Make the tensor from the sample "
        "(x.new_empty, torch.empty_like), or give vmap randomness='same'.",
    ),
    Misuse(
        "same from batched probabilities",
        lambda tf: tf.vmap(torch.bernoulli, randomness="same")(BATCH / 9),
        RuntimeError,
        "torchlayers: vmap (level 1) can't run aten::bernoulli on a batch of 3 samples (self (2,)):"
        " Vmap does not currently support same randomness with a batched tensor input. Please file "
        "an issue with functorch.",
    ),
]


def captured(op, layer="grad (level 1)"):
    return (
        f"torchlayers: {layer} can't let the in-place operator {op} mutate a captured tensor: its "
        "gradient would be silently wrong. Pass the tensor to the function as an argument, or use "
        "the out-of-place operator. (BatchNorm updates its statistics so: see "
        "torchlayers.replace_all_batch_norm_modules_.)"
    )


def no_room(op, level=1):
    return (
        f"torchlayers: vmap (level {level}) can't write a batched value into a tensor that is not "
        f"batched ({op}): it has room for one sample, not for 3. Make it from the sample "
        "(torch.zeros_like(x), x.new_zeros), or use the out-of-place operator."
    )


WRITES = [
    Misuse(
        "grad: add_",
        lambda tf: tf.grad(writing(lambda y, x: y.add_(x)))(X),
        RuntimeError,
        captured("aten::add_.Tensor"),
    ),
    Misuse(
        "grad: mul_ by a number",
        lambda tf: tf.grad(writing(lambda y, x: y.mul_(2)))(X),
        RuntimeError,
        captured("aten::mul_.Tensor"),
    ),
    Misuse(
        "grad: copy_",
        lambda tf: tf.grad(writing(lambda y, x: y.copy_(x)))(X),
        RuntimeError,
        captured("aten::copy_"),
    ),
    Misuse(
        "grad: an item",
        lambda tf: tf.grad(writing(lambda y, x: y.__setitem__(0, x[0])))(X),
        RuntimeError,
        captured("aten::copy_"),
    ),
    Misuse(
        "grad: through a view",
        lambda tf: tf.grad(writing(lambda y, x: y[0].zero_()))(X),
        RuntimeError,
        captured("aten::zero_"),
    ),
    Misuse(
        "grad: resize_",
        lambda tf: tf.grad(writing(lambda y, x: y.resize_(4)))(X),
        RuntimeError,
        captured("aten::resize_"),
    ),
    Misuse(
        "grad_and_value: fill_",
        lambda tf: tf.grad_and_value(writing(lambda y, x: y.fill_(1)))(X),
        RuntimeError,
        captured("aten::fill_.Scalar"),
    ),
    Misuse(
        "vjp: sub_",
        lambda tf: tf.vjp(writing(lambda y, x: y.sub_(x)), X),
        RuntimeError,
        captured("aten::sub_.Tensor"),
    ),
    Misuse(
        "jvp: sub_",
        lambda tf: tf.jvp(writing(lambda y, x: y.sub_(x)), (X,), (X,)),
        RuntimeError,
        captured("aten::sub_.Tensor", "jvp (level 1)"),
    ),
    Misuse(
        "inner grad: a tensor of the outer",
        lambda tf: writing_to_the_outer_levels(tf),
        RuntimeError,
        captured("aten::mul_.Tensor", "grad (level 2)"),
    ),
    Misuse(
        "vmap of grad: div_",
        lambda tf: tf.vmap(tf.grad(writing(lambda y, x: y.div_(2))))(BATCH),
        RuntimeError,
        captured("aten::div_.Tensor", "grad (level 2)"),
    ),
    Misuse(
        "grad: out=",
        lambda tf: tf.grad(writing(lambda y, x: torch.sin(x, out=y)))(X),
        RuntimeError,
        "sin(): functions with out=... arguments don't support automatic differentiation",
    ),
    Misuse(
        "vmap: add_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.add_(x)))(BATCH),
        RuntimeError,
        no_room("aten::add_.Tensor"),
    ),
    Misuse(
        "vmap: an item",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.__setitem__(0, x[0])))(BATCH),
        RuntimeError,
        no_room("aten::copy_"),
    ),
    Misuse(
        "vmap: copy_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.copy_(x)))(BATCH),
        RuntimeError,
        no_room("aten::copy_"),
    ),
    Misuse(
        "vmap: index_put_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.index_put_((FIRST,), x[:1])))(BATCH),
        RuntimeError,
        no_room("aten::index_put_"),
    ),
    Misuse(
        "vmap: scatter_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.scatter_(0, FIRST, x[:1])))(BATCH),
        RuntimeError,
        no_room("aten::scatter_.src"),
    ),
    Misuse(
        "vmap: masked_fill_",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: y.masked_fill_(x > 2, 0.0)))(BATCH),
        RuntimeError,
        no_room("aten::masked_fill_.Scalar"),
    ),
    Misuse(
        "vmap: a fresh tensor",
        lambda tf: tf.vmap(lambda x: torch.zeros(2).copy_(x))(BATCH),
        RuntimeError,
        no_room("aten::copy_"),
    ),
    Misuse(
        "vmap: an argument not batched",
        lambda tf: tf.vmap(lambda x, y: x.add_(y), in_dims=(None, 0))(torch.zeros(2), BATCH),
        RuntimeError,
        no_room("aten::add_.Tensor"),
    ),
    Misuse(
        "vmap: a sample of the outer in the inner",
        lambda tf: tf.vmap(lambda x: tf.vmap(lambda y: x.copy_(y))(BATCH))(BATCH.clone()),
        RuntimeError,
        no_room("aten::copy_", level=2),
    ),
    Misuse(
        "vmap: out=",
        lambda tf: tf.vmap(writing_unbatched(lambda y, x: torch.sin(x, out=y)))(BATCH),
        RuntimeError,
        no_rule("aten::sin.out"),
    ),
    Misuse(
        "vmap: data",
        lambda tf: tf.vmap(lambda x: x.data)(BATCH),
        TransformError,
        "torchlayers: vmap (level 1) has no `data` of its own (accessing `data` under vmap "
        "transform is not allowed). Use x.detach().",
    ),
]

HOOKS = (
    "torchlayers: saved-tensor hooks (checkpointing, save_on_cpu) don't work inside grad, vjp, "
    "jacrev and hessian: they would run between the layers. Use them around plain autograd, "
    "outside the transformed function."
)
AUTOGRAD = [
    Misuse(
        "requires_grad_ in grad",
        lambda tf: tf.grad(lambda x: x.clone().requires_grad_().sum())(X),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "requires_grad_ in vjp",
        lambda tf: tf.vjp(lambda x: x.clone().requires_grad_(), X),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "requires_grad_ in jvp",
        lambda tf: tf.jvp(lambda x: x.clone().requires_grad_(), (X,), (X,)),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "requires_grad_ in vmap",
        lambda tf: tf.vmap(lambda x: x.clone().requires_grad_())(BATCH),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "requires_grad_ on a fresh tensor",
        lambda tf: tf.grad(lambda x: (x * torch.ones(3).requires_grad_()).sum())(X),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "retain_grad in grad",
        lambda tf: tf.grad(lambda x: (x * 2).retain_grad())(X),
        RuntimeError,
        "You are attempting to call Tensor.retain_grad()",
    ),
    Misuse(
        "retain_grad in vmap",
        lambda tf: tf.vmap(lambda x: (x * 2).retain_grad())(BATCH),
        RuntimeError,
        "can't retain_grad on Tensor that has requires_grad=False",
    ),
    Misuse(
        "backward in grad",
        lambda tf: tf.grad(lambda x: (x * 2).sum().backward())(X),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "backward in vjp",
        lambda tf: tf.vjp(lambda x: (x * 2).sum().backward(), X),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "backward in jvp",
        lambda tf: tf.jvp(lambda x: (x * 2).sum().backward(), (X,), (X,)),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "backward in vmap",
        lambda tf: tf.vmap(lambda x: (x * 2).sum().backward())(BATCH),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "autograd.backward in grad",
        lambda tf: tf.grad(lambda x: torch.autograd.backward((x * 2).sum()))(X),
        RuntimeError,
        "backward() called inside a functorch transform",
    ),
    Misuse(
        "autograd.functional in grad",
        lambda tf: tf.grad(lambda x: torch.autograd.functional.jacobian(torch.sin, x).sum())(X),
        RuntimeError,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Misuse(
        "a dual level in jvp",
        lambda tf: tf.jvp(with_dual_level, (X,), (X,)),
        RuntimeError,
        "Nested forward mode AD is not supported",
    ),
    Misuse(
        "hooks in grad",
        lambda tf: tf.grad(with_hooks)(X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "hooks in grad_and_value",
        lambda tf: tf.grad_and_value(with_hooks)(X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "hooks in vjp",
        lambda tf: tf.vjp(with_hooks, X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "hooks in jvp in grad",
        lambda tf: tf.grad(lambda x: tf.jvp(with_hooks, (x,), (x,))[1])(X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "checkpoint in grad",
        lambda tf: tf.grad(lambda x: checkpoint(torch.sin, x, use_reentrant=False).sum())(X),
        RuntimeError,
        HOOKS,
    ),
    Misuse(
        "reentrant checkpoint in grad",
        lambda tf: tf.grad(lambda x: checkpoint(torch.sin, x, use_reentrant=True).sum())(X),
        FunctionError,
        "torchlayers: CheckpointFunction is made for plain autograd, and has no setup_context. "
        "Call it outside the transformed function.",
    ),
    Misuse(
        "a Function without setup_context and flag in vmap",
        lambda tf: tf.vmap(WithoutSetupContext.apply)(BATCH),
        FunctionError,
        "torchlayers: vmap does not know how to batch WithoutSetupContext. If its methods use "
        "torch's operators alone, set WithoutSetupContext.generate_vmap_rule = True; else give it "
        "a vmap staticmethod.",
    ),
    Misuse(
        "a Function without jvp in jvp",
        lambda tf: tf.jvp(WithBackwardOnly.apply, (X,), (X,)),
        MissingDerivativeError,
        "torchlayers: WithBackwardOnly has no jvp staticmethod. You must implement the jvp "
        "function for custom autograd.Function to use it with forward mode AD. Give it one, or "
        "instead of jvp, jacfwd, hessian and linearize use reverse mode: vjp, jacrev, or "
        "jacrev(jacrev(f)) for hessian(f).",
    ),
]

ESCAPED = [
    Misuse(
        "used in the vmap around it",
        lambda tf: tf.vmap(lambda x: kept(tf, BATCH) + x)(BATCH),
        RuntimeError,
        "torchlayers: a tensor batched by vmap (level 2) was used in vmap (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "returned from the vmap around it",
        lambda tf: tf.vmap(lambda x: kept(tf, BATCH))(BATCH),
        RuntimeError,
        "torchlayers: a tensor batched by vmap (level 2) was used in vmap (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "used in the grad around it",
        lambda tf: tf.grad(lambda x: kept(tf, BATCH).sum() * x.sum())(X),
        RuntimeError,
        "torchlayers: a tensor batched by vmap (level 2) was used in grad (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "used in the jvp around it",
        lambda tf: tf.jvp(lambda x: kept(tf, BATCH).sum() * x, (X,), (X,)),
        RuntimeError,
        "torchlayers: a tensor batched by vmap (level 2) was used in jvp (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "used in a later grad",
        lambda tf: tf.grad(functools.partial(loss, kept(tf, BATCH)))(X[:2]),
        RuntimeError,
        "torchlayers: a tensor batched by vmap (level 1) was used in grad (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "the argument of a later grad",
        lambda tf: tf.grad(torch.sum)(kept(tf, BATCH)),
        RuntimeError,
        "torchlayers: a tensor batched by vmap (level 1) was used in grad (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "the primal of a later jvp",
        lambda tf: tf.jvp(torch.sin, (kept(tf, BATCH),), (X[:2],)),
        RuntimeError,
        "torchlayers: a tensor batched by vmap (level 1) was used in jvp (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "the argument of a later vmap",
        lambda tf: tf.vmap(torch.sin)(kept(tf, BATCH)),
        RuntimeError,
        "torchlayers: a tensor batched by vmap (level 1) was used in vmap (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "used outside all",
        lambda tf: kept(tf, BATCH) + 1,
        RuntimeError,
        "torchlayers: a tensor batched by vmap (level 1) has escaped from inside a function being "
        "vmapped: it was used by aten::add.Tensor outside that transform. Return it from the "
        "function instead of keeping it.",
    ),
]

GROUPS = {
    "argnums": ARGNUMS,
    "grad": GRAD,
    "vjp": VJP,
    "cotangents": COTANGENTS,
    "jvp": JVP,
    "in_dims": IN_DIMS,
    "out_dims": OUT_DIMS,
    "vmap": VMAP,
    "jacobian": JACOBIAN,
    "numbers": NUMBERS,
    "dynamic shapes": DYNAMIC_SHAPES,
    "shapes": SHAPES,
    "random": RANDOM,
    "writes": WRITES,
    "autograd": AUTOGRAD,
    "escaped": ESCAPED,
}
CASES = [
    pytest.param(case, id=f"{group}: {case.name}")
    for group, cases in GROUPS.items()
    for case in cases
]
# Where in the user's code it happened, as C++ adds it to a message.
LOCATION = re.compile(r" In test_misuse\.py:\d+, `.+`\.$")


def error_of(call, library):
    """What the call raises, which leaves nothing behind."""
    before = ambient()
    with pytest.raises(Exception) as caught:
        run(call, library)
    assert ambient() == before
    return caught.value


def built_in(error):
    return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_misuse_is_refused_in_these_words(case):
    error = error_of(case.call, tl)
    assert type(error) is case.error
    if "torchlayers: " in case.message:
        assert LOCATION.sub("", str(error)) == case.message
    else:
        assert str(error).startswith(case.message)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_programs_that_catch_torch_funcs_error_catch_ours(case):
    try:
        run(case.call, torch.func)
    except Exception as error:
        assert issubclass(case.error, built_in(error)) != bool(case.torch_func)
    else:
        assert case.torch_func


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_misuse_inside_another_transform_leaves_it_as_it_was(case):
    seen = []

    def f(x):
        error_of(case.call, tl)
        seen.append([layer.kind for layer in tl.current_stack()])
        return (x**3).sum()

    assert tl.grad(f)(ONE).item() == 3.0
    assert seen == [["grad"]]


def reads_a_number(x):
    y = x.sum()
    return y.item()


def reads_a_number_deeper(x):
    return sum(map(reads_a_number, [x, x]))


def reads_a_number_in_torchs_own_python(x):
    return f"{x.sum():.2f}"


def writes_to_what_it_captured(x):
    return x.sum() + ONE.add_(1)


@pytest.mark.parametrize(
    ("transform", "function", "place"),
    [
        (tl.vmap, reads_a_number, reads_a_number),
        (tl.vmap, reads_a_number_deeper, reads_a_number),
        (tl.vmap, reads_a_number_in_torchs_own_python, reads_a_number_in_torchs_own_python),
        (tl.grad, writes_to_what_it_captured, writes_to_what_it_captured),
        (tl.grad, tl.vmap(tl.grad(writes_to_what_it_captured)), writes_to_what_it_captured),
    ],
)
def test_an_error_inside_the_function_names_the_users_line(transform, function, place):
    with pytest.raises(RuntimeError) as error:
        transform(function)(BATCH)
    lines, first = inspect.getsourcelines(place)
    line = first + len(lines) - 1
    assert str(error.value).endswith(f" In test_misuse.py:{line}, `{lines[-1].strip()}`.")


def test_saved_tensor_hooks_around_a_transform_are_refused_and_not_forbidden_for_ever():
    try:
        with (
            saved_tensors_hooks(lambda t: t, lambda t: t),
            pytest.raises(RuntimeError, match="saved-tensor hooks"),
        ):
            tl.grad(torch.sum)(X)
        assert torch._C._autograd._saved_tensors_hooks_is_enabled()
    finally:
        torch._C._autograd._saved_tensors_hooks_enable()
