"""Arguments of vmap, and what its function returns or calls."""

import torch
import torch.func
from torch import nn

from tests.errors.programs import BATCH, WithBackwardOnly, X, no_rule
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import (
    BatchedOperatorError,
    CallError,
    DimensionError,
    FunctionError,
    InPlaceError,
    NotTensorError,
    TransformError,
)

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
        "torchlayers: vmap(<lambda>): the function must return only tensors, got float. Give it "
        "out_dims=None to return it unchanged.",
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
        "torchlayers: vmap(<lambda>): the function must return only tensors, got NoneType. Give it "
        "out_dims=None to return it unchanged.",
    ),
    Misuse(
        "output with a name",
        lambda tf: tf.vmap(lambda x: (x, "name"))(BATCH),
        NotTensorError,
        "torchlayers: vmap(<lambda>): the function must return only tensors, got str. Give it "
        "out_dims=None to return it unchanged.",
    ),
    Misuse(
        "the length of a sample",
        lambda tf: tf.vmap(len)(BATCH),
        NotTensorError,
        "torchlayers: vmap(len): the function must return only tensors, got int. Give it "
        "out_dims=None to return it unchanged.",
    ),
    Misuse(
        "unknown randomness",
        lambda tf: tf.vmap(torch.sin, randomness="never"),
        TransformError,
        "torchlayers: vmap: randomness must be 'error', 'same', 'different' or 'keyed', got "
        "'never'.",
    ),
    Misuse(
        "None as randomness",
        lambda tf: tf.vmap(torch.sin, randomness=None),
        TransformError,
        "torchlayers: vmap: randomness must be 'error', 'same', 'different' or 'keyed', got None.",
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
        CallError,
        "torchlayers: a transform takes a function, got int. Pass the function itself: "
        "grad(f)(x) and vjp(f, x), not grad(f(x)).",
    ),
    Misuse(
        "an operator without a rule",
        lambda tf: tf.vmap(torch.equal, in_dims=(0, None))(BATCH, BATCH[0]),
        BatchedOperatorError,
        no_rule("aten::equal"),
    ),
    Misuse(
        "batch norm in training",
        lambda tf: tf.vmap(BATCH_NORM)(BATCH[None]),
        InPlaceError,
        "torchlayers: vmap (level 1) can't update the running statistics of a batch norm "
        "(aten::batch_norm): they are not batched, but each of the 1 samples would update them. "
        "Remove them (torchlayers.replace_all_batch_norm_modules_, or track_running_stats=False), "
        "or put the module into eval mode.",
    ),
    Misuse(
        "a Function without vmap",
        lambda tf: tf.vmap(WithBackwardOnly.apply)(BATCH),
        FunctionError,
        "torchlayers: vmap does not know how to batch WithBackwardOnly. If its methods use only "
        "torch operators, set WithBackwardOnly.generate_vmap_rule = True; otherwise define a vmap "
        "staticmethod.",
    ),
]


class TestVmap(MisuseTests):
    table = VMAP
