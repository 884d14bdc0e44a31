"""in_dims and out_dims."""

import torch
import torch.func

from tests.errors.programs import BATCH, ONE, X
from tests.errors.table import Misuse, MisuseTests
from torchlayers.errors import DimensionError, NotTensorError, OutDimError

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
        "torchlayers: vmap(sin, in_dims=None): in_dims must be an int or a tuple that matches the "
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
        "torchlayers: vmap(sin, in_dims=[0]): in_dims must be an int or a tuple that matches the "
        "arguments, got list. For one argument write ([0],).",
    ),
    Misuse(
        "a list for two",
        lambda tf: tf.vmap(torch.mul, in_dims=[0, None])(BATCH, X),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=[0, None]): in_dims must be an int or a tuple that matches "
        "the arguments, got list. Write a tuple: (0, None).",
    ),
    Misuse(
        "a dict",
        lambda tf: tf.vmap(torch.sin, in_dims={"x": 0})(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims={'x': 0}): in_dims must be an int or a tuple that matches "
        "the arguments, got dict. For one argument write ({'x': 0},).",
    ),
    Misuse(
        "a string",
        lambda tf: tf.vmap(torch.sin, in_dims="0")(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims='0'): in_dims must be an int or a tuple that matches the "
        "arguments, got str.",
    ),
    Misuse(
        "a float",
        lambda tf: tf.vmap(torch.sin, in_dims=0.0)(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=0.0): in_dims must be an int or a tuple that matches the "
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
        "torchlayers: vmap(sin, in_dims=(0, 0)): in_dims don't match the arguments: in_dims are "
        "(*, *), the arguments (*,) (* is a leaf).",
    ),
    Misuse(
        "too few",
        lambda tf: tf.vmap(torch.mul, in_dims=(0,))(BATCH, BATCH),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=(0,)): in_dims don't match the arguments: in_dims are "
        "(*,), the arguments (*, *) (* is a leaf).",
    ),
    Misuse(
        "empty",
        lambda tf: tf.vmap(torch.sin, in_dims=())(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=()): in_dims don't match the arguments: in_dims are (), "
        "the arguments (*,) (* is a leaf).",
    ),
    Misuse(
        "a tuple for a tensor",
        lambda tf: tf.vmap(torch.sin, in_dims=((0,),))(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, in_dims=((0,),)): in_dims don't match the arguments: in_dims are "
        "((*,),), the arguments (*,) (* is a leaf).",
    ),
    Misuse(
        "another key",
        lambda tf: tf.vmap(lambda d: d["x"], in_dims=({"y": 0},))({"x": BATCH}),
        DimensionError,
        "torchlayers: vmap(<lambda>, in_dims=({'y': 0},)): in_dims don't match the arguments: "
        "in_dims are ({'y': *},), the arguments ({'x': *},) (* is a leaf).",
    ),
    Misuse(
        "a list for a tuple",
        lambda tf: tf.vmap(lambda t: t[0], in_dims=([0],))((BATCH,)),
        DimensionError,
        "torchlayers: vmap(<lambda>, in_dims=([0],)): in_dims don't match the arguments: in_dims "
        "are ([*],), the arguments ((*,),) (* is a leaf).",
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
        "mapped dimension, but argument 0 has 3 in dim 0 and argument 1 has 2 in dim 0. Give None "
        "in in_dims to an argument that all samples share: in_dims=(None, 0).",
    ),
    Misuse(
        "a larger batch behind a smaller one",
        lambda tf: tf.vmap(torch.mul)(BATCH[:2], BATCH),
        DimensionError,
        "torchlayers: vmap(mul, in_dims=0): Expected all tensors to have the same size in the "
        "mapped dimension, but argument 0 has 2 in dim 0 and argument 1 has 3 in dim 0. Give None "
        "in in_dims to an argument that all samples share: in_dims=(None, 0).",
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
        "dimensions including the batch dimension: it must lie in [-2, 1].",
    ),
    Misuse(
        "before the first",
        lambda tf: tf.vmap(torch.sin, out_dims=-3)(BATCH),
        OutDimError,
        "torchlayers: vmap(sin, out_dims=-3): out_dim -3 is out of range for a result that has 2 "
        "dimensions including the batch dimension: it must lie in [-2, 1].",
    ),
    Misuse(
        "beyond the last, not batched",
        lambda tf: tf.vmap(lambda x: X, out_dims=2)(BATCH),
        OutDimError,
        "torchlayers: vmap(<lambda>, out_dims=2): out_dim 2 is out of range for a result that has "
        "2 dimensions including the batch dimension: it must lie in [-2, 1].",
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
        "torchlayers: vmap(sin, out_dims=(0, 0)): out_dims don't match the results: out_dims are "
        "(*, *), the results * (* is a leaf).",
    ),
    Misuse(
        "none for a tensor",
        lambda tf: tf.vmap(torch.sin, out_dims=())(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims=()): out_dims don't match the results: out_dims are (), "
        "the results * (* is a leaf).",
    ),
    Misuse(
        "a dict for a tensor",
        lambda tf: tf.vmap(torch.sin, out_dims={"a": 0})(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims={'a': 0}): out_dims don't match the results: out_dims are "
        "{'a': *}, the results * (* is a leaf).",
    ),
    Misuse(
        "a list for a tensor",
        lambda tf: tf.vmap(torch.sin, out_dims=[0])(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims=[0]): out_dims don't match the results: out_dims are [*], "
        "the results * (* is a leaf).",
    ),
    Misuse(
        "one for two",
        lambda tf: tf.vmap(lambda x: (x, x), out_dims=(0,))(BATCH),
        DimensionError,
        "torchlayers: vmap(<lambda>, out_dims=(0,)): out_dims don't match the results: out_dims "
        "are (*,), the results (*, *) (* is a leaf).",
    ),
    Misuse(
        "three for two",
        lambda tf: tf.vmap(lambda x: (x, x), out_dims=(0, 0, 0))(BATCH),
        DimensionError,
        "torchlayers: vmap(<lambda>, out_dims=(0, 0, 0)): out_dims don't match the results: "
        "out_dims are (*, *, *), the results (*, *) (* is a leaf).",
    ),
    Misuse(
        "a list for a tuple",
        lambda tf: tf.vmap(lambda x: (x, x), out_dims=[0, 0])(BATCH),
        DimensionError,
        "torchlayers: vmap(<lambda>, out_dims=[0, 0]): out_dims don't match the results: out_dims "
        "are [*, *], the results (*, *) (* is a leaf).",
    ),
    Misuse(
        "a tuple in a one-tuple",
        lambda tf: tf.vmap(torch.sin, out_dims=((0,),))(BATCH),
        DimensionError,
        "torchlayers: vmap(sin, out_dims=((0,),)): out_dims don't match the results: out_dims are "
        "((*,),), the results * (* is a leaf).",
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


class TestInDims(MisuseTests):
    table = IN_DIMS


class TestOutDims(MisuseTests):
    table = OUT_DIMS
