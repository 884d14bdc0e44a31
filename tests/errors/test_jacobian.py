"""Arguments of jacrev, jacfwd and hessian."""

import torch
import torch.func

from tests.errors.programs import ONE, SHOULD_BE_A_PAIR, X
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import ArgnumsError, DtypeError, NotTensorError, OutputError, StructureError

JACOBIAN = [
    Misuse(
        "jacrev: a number argument",
        lambda tf: tf.jacrev(lambda x, y: x, argnums=1)(X, 1.0),
        NotTensorError,
        "torchlayers: jacrev: argument 1 must be a tensor to be differentiated, got float (1.0). "
        "Convert it to a tensor, or leave it out of argnums.",
    ),
    Misuse(
        "jacfwd: a number argument",
        lambda tf: tf.jacfwd(lambda x, y: x, argnums=1)(X, 1.0),
        NotTensorError,
        "torchlayers: jacfwd: argument 1 must be a tensor to be differentiated, got float (1.0). "
        "Convert it to a tensor, or leave it out of argnums.",
        torch_func="AttributeError, from asking it for numel",
    ),
    Misuse(
        "jacrev: an integer argument",
        lambda tf: tf.jacrev(torch.mul, argnums=1)(X, torch.arange(3)),
        DtypeError,
        "torchlayers: jacrev: can't differentiate with respect to argument 1, of dtype "
        "torch.int64: only floating-point and complex tensors have gradients. Convert it, or leave "
        "it out of argnums.",
    ),
    Misuse(
        "jacfwd: no tensor in the argument",
        lambda tf: tf.jacfwd(torch.sin)({}),
        StructureError,
        "torchlayers: jacfwd: the arguments contain no tensor to differentiate with respect to.",
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


class TestJacobian(MisuseTests):
    table = JACOBIAN
