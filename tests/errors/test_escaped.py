"""Batched tensors that escape from a vmap."""

import functools

import torch
import torch.func

from tests.errors.programs import BATCH, X, kept, loss
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import EscapedTensorError

ESCAPED = [
    Misuse(
        "used in the vmap around it",
        lambda tf: tf.vmap(lambda x: kept(tf, BATCH) + x)(BATCH),
        EscapedTensorError,
        "torchlayers: a tensor batched by vmap (level 2) was used in vmap (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "returned from the vmap around it",
        lambda tf: tf.vmap(lambda x: kept(tf, BATCH))(BATCH),
        EscapedTensorError,
        "torchlayers: a tensor batched by vmap (level 2) was used in vmap (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "used in the grad around it",
        lambda tf: tf.grad(lambda x: kept(tf, BATCH).sum() * x.sum())(X),
        EscapedTensorError,
        "torchlayers: a tensor batched by vmap (level 2) was used in grad (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "used in the jvp around it",
        lambda tf: tf.jvp(lambda x: kept(tf, BATCH).sum() * x, (X,), (X,)),
        EscapedTensorError,
        "torchlayers: a tensor batched by vmap (level 2) was used in jvp (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "used in a later grad",
        lambda tf: tf.grad(functools.partial(loss, kept(tf, BATCH)))(X[:2]),
        EscapedTensorError,
        "torchlayers: a tensor batched by vmap (level 1) was used in grad (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "the argument of a later grad",
        lambda tf: tf.grad(torch.sum)(kept(tf, BATCH)),
        EscapedTensorError,
        "torchlayers: a tensor batched by vmap (level 1) was used in grad (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "the primal of a later jvp",
        lambda tf: tf.jvp(torch.sin, (kept(tf, BATCH),), (X[:2],)),
        EscapedTensorError,
        "torchlayers: a tensor batched by vmap (level 1) was used in jvp (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "the argument of a later vmap",
        lambda tf: tf.vmap(torch.sin)(kept(tf, BATCH)),
        EscapedTensorError,
        "torchlayers: a tensor batched by vmap (level 1) was used in vmap (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it.",
    ),
    Misuse(
        "used outside all",
        lambda tf: kept(tf, BATCH) + 1,
        EscapedTensorError,
        "torchlayers: a tensor batched by vmap (level 1) was used by aten::add.Tensor outside that "
        "transform, which has ended or is another thread's. Return it from the function instead "
        "of keeping it.",
    ),
]


class TestEscaped(MisuseTests):
    table = ESCAPED
