"""Operators that fail on a sample, or draw random numbers."""

import torch
import torch.func
from torch import nn

from tests.errors.programs import BATCH, batched
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import BatchedOperatorError, InPlaceError, RandomnessError


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
        ("a sum that does not broadcast", lambda x: x + THREE, BatchedOperatorError,
         "aten::add.Tensor", "self (2,), other (3,)", UNEQUAL),
        ("the same in place", lambda x: x.clone().add_(THREE), BatchedOperatorError,
         "aten::add_.Tensor", "self (2,), other (3,)", UNEQUAL),
        ("a view of another size", lambda x: x.view(3), BatchedOperatorError,
         "aten::view", "self (2,)", "shape '[3]' is invalid for input of size 2"),
        ("a shape of another size", lambda x: x.reshape(3, -1), BatchedOperatorError,
         "aten::reshape", "self (2,)", "shape '[3, -1]' is invalid for input of size 2"),
        ("cat of two ranks", lambda x: torch.cat([x, x[None]]), BatchedOperatorError, "aten::cat",
         "tensors (2,), (1, 2)", "Tensors must have same number of dimensions: got 1 and 2"),
        ("stack of two sizes", lambda x: torch.stack([x, x[:1]]), BatchedOperatorError,
         "aten::stack", "tensors (2,), (1,)",
         "stack expects each tensor to be equal size, but got [2] at entry 0 and [1] at entry 1"),
        ("linear of another width", lambda x: nn.functional.linear(x, torch.ones(5, 4)),
         BatchedOperatorError, "aten::linear", "input (2,), weight (5, 4)",
         "mat1 and mat2 shapes cannot be multiplied (1x2 and 4x5)"),
        ("softmax of a dimension too far", lambda x: x.softmax(1), IndexError, "aten::softmax.int",
         "self (2,)", BEYOND_THE_ONE),
        ("transpose of a dimension too far", lambda x: x.transpose(0, 1), IndexError,
         "aten::transpose.int", "self (2,)", BEYOND_THE_ONE),
        ("a row expanded", lambda x: x.expand(3), BatchedOperatorError, "aten::expand", "self (2,)",
         "The expanded size of the tensor (3) must match the existing size (2) at non-singleton "
         "dimension 0.  Target sizes: [3].  Tensor sizes: [2]"),
    )
] + [
    Misuse(
        "a product that does not fit",
        lambda tf: tf.vmap(torch.mv)(MATRICES, MATRICES[:, :, 0]),
        BatchedOperatorError, MV,
    ),
    Misuse(
        "in grad in vmap",
        lambda tf: tf.vmap(tf.grad(lambda x: torch.mv(x, BATCH[0]).sum()))(MATRICES),
        BatchedOperatorError, MV,
    ),
    Misuse(
        "in vmap in grad",
        lambda tf: tf.grad(lambda x: tf.vmap(lambda x: torch.mv(x, BATCH[0]))(x).sum())(MATRICES),
        BatchedOperatorError, MV.replace("level 1", "level 2"),
    ),
    Misuse(
        "in vmap in vmap",
        lambda tf: tf.vmap(lambda x: tf.vmap(lambda y: torch.mv(x, y))(BATCH))(MATRICES),
        BatchedOperatorError, MV.replace("level 1", "level 2"),
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
        f"{level}) called the random operator {op} with randomness='error'. Pass "
        "randomness='different' to vmap for different numbers in each sample, or 'same' for the "
        "same numbers in all."
    )


NOISE = torch.zeros(2)

RANDOM = [
    Misuse(
        name,
        batched(f),
        RandomnessError,
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
        RandomnessError,
        random("aten::rand_like", level=2),
    ),
    Misuse(
        "allowed inside only",
        lambda tf: tf.vmap(tf.vmap(torch.rand_like, randomness="same"))(BATCH),
        RandomnessError,
        random("aten::rand_like", level=1),
    ),
    Misuse(
        "different in a tensor not batched",
        lambda tf: tf.vmap(lambda x: NOISE.uniform_(), randomness="different")(BATCH),
        InPlaceError,
        "torchlayers: vmap (level 1) can't fill a tensor that is not batched with random numbers "
        "that differ between samples (aten::uniform_): it is `NOISE`, of shape (2,), which "
        "<lambda> captured. Create the tensor inside the function, or pass randomness='same' to "
        "vmap.",
    ),
]


class TestShapes(MisuseTests):
    table = SHAPES


class TestRandom(MisuseTests):
    table = RANDOM
