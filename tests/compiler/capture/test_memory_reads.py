"""Functions that read a tensor's memory, as NumPy does, can't be captured as one graph."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import torchlayers as tl
from torchlayers.errors import DataDependentError, TransformError

CAPTURED = torch.tensor([2.0, 3.0, 4.0])
X = torch.ones(3)

READS = {
    "numpy": lambda x: torch.from_numpy(x.numpy()),
    "numpy of a detached tensor": lambda x: float(x.detach().numpy().sum()),
    "asarray": lambda x: float(np.asarray(x)[0]),
    "a function of NumPy": lambda x: float(np.mean(x.detach().numpy())),
    "torch.asarray of an array": lambda x: torch.asarray(np.asarray(x)),
    "tolist": lambda x: x.tolist()[0],
    "tensor of a list": lambda x: torch.tensor(x.tolist()),
    "dlpack": lambda x: torch.from_dlpack(x),
    "NumPy by dlpack": lambda x: float(np.from_dlpack(x)[0]),
    "storage": lambda x: x.storage()[0],
    "address": lambda x: x.data_ptr(),
}
TENSORS = {
    "captured": lambda x: CAPTURED,
    "argument": lambda x: x,
    "computed": lambda x: CAPTURED * 2,
}
TRANSFORMS = {
    "as it is": lambda f: f,
    "grad": lambda f: tl.grad(lambda x: f(x).sum()),
    "vmap": lambda f: lambda x: tl.vmap(f)(torch.stack([x, x])),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("of", TENSORS)
@pytest.mark.parametrize("read", READS)
def test_read_is_refused(read, of, transform):
    f = TRANSFORMS[transform](lambda x: x * READS[read](TENSORS[of](x)))
    with pytest.raises((TransformError, RuntimeError, TypeError)):
        tl.compile(f, backend="replay", fullgraph=True)(X)
    with pytest.raises((TransformError, RuntimeError, TypeError)):
        tl.make_graph(f)(X)


@pytest.mark.parametrize("backend", ["replay", "inductor"])
@pytest.mark.parametrize("read", [torch.Tensor.numpy, np.asarray, torch.Tensor.tolist])
@pytest.mark.parametrize("of", TENSORS)
def test_error_says_what_reads_and_where(of, read, backend):
    def f(x):
        return x * read(TENSORS[of](x))[0]

    with pytest.raises(
        DataDependentError, match=r"f asks for the value of a tensor .*test_memory_reads.py"
    ):
        tl.compile(f, backend=backend, fullgraph=True)(X)


def test_function_that_writes_through_numpy_runs_uncompiled():
    counts = torch.zeros(3)

    def f(x):
        counts.numpy()[:] += 1.0
        return x + counts

    compiled = tl.compile(f, backend="replay")
    with pytest.warns(UserWarning, match=r"writes to the array.*counts.numpy\(\)"):
        assert [compiled(X).tolist()[0] for _ in range(3)] == [2.0, 3.0, 4.0]
    with pytest.raises(DataDependentError, match=r"numpy\(\)"):
        tl.compile(f, backend="replay", fullgraph=True)(X)
    assert counts.tolist() == [3.0, 3.0, 3.0]


def test_reads_of_a_module_by_its_own_method_are_refused():
    net = nn.Linear(3, 3)

    def f(x):
        return x * float(np.abs(net.weight.detach().numpy()).max())

    with pytest.raises(DataDependentError, match="Write it with torch functions"):
        tl.compile(f, backend="replay", fullgraph=True)(X)
    compiled = tl.compile(f, backend="replay")
    for _ in range(3):
        assert torch.equal(compiled(X), f(X))
        with torch.no_grad():
            net.weight *= 2


def test_deepcopy_under_a_layer_is_a_copy():
    f = tl.grad(lambda x: (x * copy.deepcopy(x)).sum())
    assert tl.compile(f, backend="replay")(X).tolist() == f(X).tolist() == [2.0, 2.0, 2.0]


def test_list_of_constants_is_captured():
    f = tl.compile(lambda x: x * torch.arange(3).tolist()[2], backend="replay")
    assert f(X).tolist() == [2.0, 2.0, 2.0]
