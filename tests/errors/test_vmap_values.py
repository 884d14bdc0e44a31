"""Things that a sample does not have: a value in Python, memory, a size that differs between
samples."""

import torch
import torch.func

from tests.errors.programs import BATCH, batched
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import BatchedOperatorError, BatchedValueError, TransformError


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


ONE_NUMBER = (
    "torchlayers: vmap (level 1) can't convert a batched tensor to one Python number: it has 3 "
    "values. vmap: It looks like you're calling .item() on a Tensor, or attempting to use a Tensor "
    "in some data-dependent control flow (bool(), if, while). Use torchlayers.cond, "
    "torchlayers.while_loop or torch.where instead of if and while; or return the value and read "
    "it after vmap; or pass fallback='loop' to vmap, which runs one sample at a time."
)


def no_memory(layer="vmap (level 1)", held="3 samples at once"):
    return (
        f"torchlayers: {layer} can't give tolist(), numpy() or data_ptr() access to memory: inside "
        f"it a tensor is {held} (Cannot access data pointer of Tensor that doesn't have storage). "
        "Return the tensor, and convert it outside."
    )


NUMBERS = [
    Misuse(name, batched(f), BatchedValueError, ONE_NUMBER)
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
        BatchedValueError,
        ONE_NUMBER,
    ),
    Misuse(
        "in vmap in grad",
        lambda tf: tf.grad(lambda x: tf.vmap(branch)(x).sum())(BATCH),
        BatchedValueError,
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
        BatchedValueError,
        ONE_NUMBER,
    ),
    Misuse(
        "allclose",
        batched(lambda x: torch.allclose(x, x)),
        BatchedValueError,
        "torchlayers: vmap (level 1) can't convert 3 samples to one Python bool (aten::allclose). "
        "Use torch.isclose(x, y).all(), and read the result after vmap.",
    ),
]


def own_size(op):
    return (
        f"torchlayers: vmap (level 1) can't run {op}: the results of different samples would "
        "differ in size. Use torch.where(mask, x, 0), call it outside vmap, or pass "
        "fallback='loop' to vmap, which runs one sample at a time."
    )


DYNAMIC_SHAPES = [
    Misuse(
        "nonzero",
        lambda tf: tf.vmap(torch.nonzero)(BATCH),
        BatchedOperatorError,
        own_size("aten::nonzero"),
    ),
    Misuse(
        "where with a condition only",
        lambda tf: tf.vmap(lambda x: torch.where(x > 1))(BATCH),
        BatchedOperatorError,
        own_size("aten::where"),
    ),
    Misuse(
        "a mask as an index",
        lambda tf: tf.vmap(lambda x: x[x > 1])(BATCH),
        BatchedOperatorError,
        own_size("aten::index.Tensor"),
    ),
    Misuse(
        "masked_select",
        lambda tf: tf.vmap(lambda x: x.masked_select(x > 1))(BATCH),
        BatchedOperatorError,
        own_size("aten::masked_select"),
    ),
    Misuse(
        "unique",
        lambda tf: tf.vmap(torch.unique)(BATCH),
        BatchedOperatorError,
        own_size("aten::_unique2"),
    ),
    Misuse(
        "one_hot without num_classes",
        lambda tf: tf.vmap(lambda x: torch.nn.functional.one_hot(x.long()))(BATCH),
        BatchedOperatorError,
        "torchlayers: vmap (level 1) can't run aten::one_hot on a batch of 3 samples (self (2,)): "
        "When vmap-ing torch.nn.functional.one_hot, please provide an explicit positive "
        "num_classes argument.",
    ),
]


class TestNumbers(MisuseTests):
    table = NUMBERS


class TestDynamicShapes(MisuseTests):
    table = DYNAMIC_SHAPES
