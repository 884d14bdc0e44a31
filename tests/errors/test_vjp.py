"""Arguments of vjp, and its cotangents."""

import torch
import torch.func

from tests.errors.programs import ONE, SHOULD_BE_A_PAIR, X
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import CallError, DtypeError, NotTensorError, OutputError, StructureError


def pull_back(tf, f, *args):
    """Calls the function that vjp returns for f."""
    return tf.vjp(f, X)[1](*args)


def pull_back_twice(tf):
    _, vjp_fn = tf.vjp(torch.sin, X)
    vjp_fn(X, retain_graph=False)
    vjp_fn(X)


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
        "torchlayers: vjp: can't differentiate with respect to argument 0, of dtype torch.int64: "
        "only floating-point and complex tensors have gradients. Convert it, or bind it "
        "beforehand, with functools.partial or a lambda.",
    ),
    Misuse(
        "number primal",
        lambda tf: tf.vjp(torch.sin, 1.0),
        NotTensorError,
        "torchlayers: vjp: argument 0 must be a tensor to be differentiated, got float (1.0). "
        "Convert it to a tensor, or bind it beforehand, with functools.partial or a lambda.",
    ),
    Misuse(
        "None primal",
        lambda tf: tf.vjp(lambda x, y: x, X, None),
        NotTensorError,
        "torchlayers: vjp: argument 1 must be a tensor to be differentiated, got NoneType (None). "
        "Convert it to a tensor, or bind it beforehand, with functools.partial or a lambda.",
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
        "torchlayers: vjp: the cotangents must have the structure of the output: got (*,) for * (* "
        "is a leaf).",
    ),
    Misuse(
        "a list for a tuple",
        lambda tf: pull_back(tf, lambda x: (x, x), [X, X]),
        StructureError,
        "torchlayers: vjp: the cotangents must have the structure of the output: got [*, *] for "
        "(*, *) (* is a leaf).",
    ),
    Misuse(
        "one for two",
        lambda tf: pull_back(tf, lambda x: (x, x), (X,)),
        StructureError,
        "torchlayers: vjp: the cotangents must have the structure of the output: got (*,) for (*, "
        "*) (* is a leaf).",
    ),
    Misuse(
        "another key",
        lambda tf: pull_back(tf, lambda x: {"a": x}, {"b": X}),
        StructureError,
        "torchlayers: vjp: the cotangents must have the structure of the output: got {'b': *} for "
        "{'a': *} (* is a leaf).",
    ),
    Misuse(
        "another shape",
        lambda tf: pull_back(tf, torch.sin, X[:2]),
        StructureError,
        "torchlayers: vjp: cotangent 0 has shape (2,), but its output has shape (3,): the shapes "
        "must be equal.",
    ),
    Misuse(
        "a shape that broadcasts",
        lambda tf: pull_back(tf, torch.sin, ONE),
        StructureError,
        "torchlayers: vjp: cotangent 0 has shape (), but its output has shape (3,): the shapes "
        "must be equal.",
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
        "torchlayers: vjp: cotangent 0 is on meta, its output on cpu: they must be on the same "
        "device.",
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


class TestVjp(MisuseTests):
    table = VJP


class TestCotangents(MisuseTests):
    table = COTANGENTS
