"""tensordict patches torch.func's vmap: a TensorDict is batched along its batch size."""

import pytest
import torch
import torch.func
from torch import nn

import torchlayers as tl
from tests.packages import package
from tests.support.calls import agree

tensordict = package("tensordict")
tensordict_nn = package("tensordict.nn")
TensorDict = tensordict.TensorDict

X = torch.linspace(-1, 1, 12).view(4, 3)
NET = nn.Linear(3, 3)
NETS = [nn.Linear(3, 3) for _ in range(5)]


def batch(*size):
    return TensorDict({"a": torch.rand((*size, 2)), "b": {"c": torch.rand(size)}}, batch_size=size)


def doubled(data):
    return data.apply(lambda leaf: leaf * 2)


def call(params, x):
    with params.to_module(NET):
        return NET(x)


def loss(params, x):
    return call(params, x).square().sum()


def stacked(lazy):
    params = [TensorDict.from_module(net).data for net in NETS]
    return tensordict.LazyStackedTensorDict(*params) if lazy else torch.stack(params)


CASES = {
    "as it is": lambda lib: lib.vmap(lambda data: data)(batch(4)),
    "a new one": lambda lib: lib.vmap(doubled)(batch(4)),
    "its second batch dimension": lambda lib: lib.vmap(doubled, (1,))(batch(4, 3)),
    "counted from the end": lambda lib: lib.vmap(doubled, (-1,))(batch(4, 3)),
    "out_dims": lambda lib: lib.vmap(doubled, out_dims=1)(batch(4, 3)),
    "vmap in vmap": lambda lib: lib.vmap(lib.vmap(doubled))(batch(4, 3)),
    "not batched": lambda lib: lib.vmap(
        lambda data, x: data.apply(lambda leaf: leaf + x), (None, 0)
    )(batch(), X[:, 0]),
    "beside a tensor": lambda lib: lib.vmap(lambda data, x: data["a"] * x)(batch(4), X[:, :2]),
    "a tensor out of it": lambda lib: lib.vmap(lambda data: data["b", "c"].sin())(batch(4)),
    "it out of a tensor": lambda lib: lib.vmap(lambda x: TensorDict({"x": x}, [3]))(X),
    "in a tuple": lambda lib: lib.vmap(lambda data: (data["a"], doubled(data)))(batch(4)),
    "lazily stacked": lambda lib: lib.vmap(call, (0, None))(stacked(lazy=True), X),
    "stacked": lambda lib: lib.vmap(call, (0, None))(stacked(lazy=False), X),
    "gradients of samples": lambda lib: lib.vmap(lib.grad(loss), (None, 0))(
        TensorDict.from_module(NET).data, X
    ),
    "gradients of an ensemble": lambda lib: lib.vmap(lib.grad(loss), (0, None))(
        stacked(lazy=False), X
    ),
    "tensors alone": lambda lib: lib.vmap(torch.mul, (0, None), out_dims=1)(X, X[0]),
    "grad": lambda lib: lib.grad(lambda data: (data["a"] ** 2).sum())(batch(4)),
    "jvp": lambda lib: lib.jvp(doubled, (batch(4),), (batch(4),)),
    "jacrev": lambda lib: lib.jacrev(lambda data: data["a"] ** 2)(batch(4)),
    "jacfwd": lambda lib: lib.jacfwd(lambda data: data["a"] ** 2)(batch(4)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_tensordict_is_batched_as_with_torch_func(case):
    agree(case)


def test_stacked_networks_equal_single_ones():
    alone = torch.stack([net(X) for net in NETS]).detach()
    for lazy in (True, False):
        together = tl.vmap(call, (0, None))(stacked(lazy), X)
        torch.testing.assert_close(together, alone)


def test_batch_size_is_restored():
    assert tl.vmap(doubled)(batch(4, 3)).batch_size == (4, 3)


@pytest.mark.parametrize("library", [torch.func, tl], ids=["torch.func", "torchlayers"])
def test_tensordicts_errors_are_unchanged(library):
    with pytest.raises(ValueError, match="same size in the mapped dimension"):
        library.vmap(lambda one, other: one)(batch(4), batch(3))


def test_a_module_s_parameters_by_name():
    module = tensordict_nn.TensorDictModule(NET, in_keys=["x"], out_keys=["y"])
    params = torch.stack([TensorDict.from_module(module).data for _ in range(2)])

    def run(params, data):
        with params.to_module(module):
            return module(data)

    agree(lambda lib: lib.vmap(run, (0, None))(params, TensorDict({"x": X}, [4])))
