"""Arguments of jvp, and its tangents."""

import torch
import torch.func

from tests.errors.programs import ONE, SHOULD_BE_A_PAIR, X
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import DtypeError, NotTensorError, OutputError, StructureError

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
        "torchlayers: jvp: tangents must have the structure of the primals: got * for (*,) (* is a "
        "leaf).",
    ),
    Misuse(
        "a list as tangents",
        lambda tf: tf.jvp(torch.sin, (X,), [X]),
        StructureError,
        "torchlayers: jvp: tangents must have the structure of the primals: got [*] for (*,) (* is "
        "a leaf).",
    ),
    Misuse(
        "one tangent for two primals",
        lambda tf: tf.jvp(torch.mul, (X, X), (X,)),
        StructureError,
        "torchlayers: jvp: tangents must have the structure of the primals: got (*,) for (*, *) (* "
        "is a leaf).",
    ),
    Misuse(
        "None as a tangent",
        lambda tf: tf.jvp(torch.mul, (X, X), (X, None)),
        NotTensorError,
        "torchlayers: jvp: tangent 1 must be a tensor, got NoneType. Pass zeros of its primal's "
        "shape (torch.zeros_like).",
    ),
    Misuse(
        "a number as a tangent",
        lambda tf: tf.jvp(torch.sin, (X,), (1.0,)),
        NotTensorError,
        "torchlayers: jvp: tangent 0 must be a tensor, got float. Pass zeros of its primal's shape "
        "(torch.zeros_like).",
    ),
    Misuse(
        "a number as a primal",
        lambda tf: tf.jvp(torch.sin, (1.0,), (1.0,)),
        NotTensorError,
        "torchlayers: jvp: primal 0 must be a tensor, got float. Convert it to a tensor, or bind "
        "it beforehand, with functools.partial or a lambda.",
    ),
    Misuse(
        "a primal with a name",
        lambda tf: tf.jvp(lambda x: x[0], ([X, "name"],), ([X, "name"],)),
        NotTensorError,
        "torchlayers: jvp: primal 0, [1] must be a tensor, got str. Convert it to a tensor, or "
        "bind it beforehand, with functools.partial or a lambda.",
    ),
    Misuse(
        "a tangent of another shape",
        lambda tf: tf.jvp(torch.sin, (X,), (X[:2],)),
        StructureError,
        "torchlayers: jvp: tangent 0 has shape (2,), but its primal has shape (3,): the shapes "
        "must be equal.",
    ),
    Misuse(
        "a tangent that broadcasts",
        lambda tf: tf.jvp(torch.mul, (X, X), (X, ONE)),
        StructureError,
        "torchlayers: jvp: tangent 1 has shape (), but its primal has shape (3,): the shapes must "
        "be equal.",
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
        "torchlayers: jvp: tangent 0 is on meta, its primal on cpu: they must be on the same "
        "device.",
    ),
    Misuse(
        "a tangent in a dict on another device",
        lambda tf: tf.jvp(lambda d: d["a"].sin(), ({"a": X},), ({"a": X.to("meta")},)),
        StructureError,
        "torchlayers: jvp: tangent 0, ['a'] is on meta, its primal on cpu: they must be on the "
        "same device.",
    ),
    Misuse(
        "a tangent of another dtype where an operator needs one dtype",
        lambda tf: tf.jvp(torch.dot, (X, X), (X, X.double())),
        DtypeError,
        "torchlayers: jvp: tangent 1 is torch.float64, its primal torch.float32, but the function "
        "needs both to have the same dtype.",
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
        "torchlayers: jvp: output 1 is independent of the primals, which is an error with "
        "strict=True. Without strict its tangent is zero.",
    ),
    Misuse(
        "independent output under strict",
        lambda tf: tf.jvp(lambda x: X * 2, (X,), (X,), strict=True),
        OutputError,
        "torchlayers: jvp: output 0 is independent of the primals, which is an error with "
        "strict=True. Without strict its tangent is zero.",
    ),
]


class TestJvp(MisuseTests):
    table = JVP
