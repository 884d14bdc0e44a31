"""Tensor subclasses and special layouts in compiled functions: right, or a clear error."""

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.support.expected_failures import COMPRESSED_ARE_CAPTURED

X = torch.arange(3.0)
pytestmark = [  # torch's warnings about beta features
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("error:torchlayers"),
]


class Marked(torch.Tensor):
    pass


class Held(torch.Tensor):
    """A tensor that wraps another tensor."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = torch.utils._pytree.tree_map(lambda x: x.held if isinstance(x, Held) else x, args)
        return Held(func(*args, **(kwargs or {})))


def quantized(x):
    return torch.quantize_per_tensor(x, 0.5, 0, torch.quint8)


def nested(x, layout=torch.strided):
    return torch.nested.as_nested_tensor([x, x[:1]], layout=layout)


def jagged(x):
    return nested(x, torch.jagged)


def compressed(x):
    return torch.sparse_csr_tensor(torch.arange(4), torch.arange(3), x, (3, 3))


def coordinates(x):
    return torch.sparse_coo_tensor(torch.arange(3)[None], x, (3,))


MAKE = {
    "quantized": quantized,
    "nested": nested,
    "jagged": jagged,
    "sparse": torch.Tensor.to_sparse,
    "sparse, by coordinates": coordinates,
    "compressed": compressed,
    "MKL-DNN's": torch.Tensor.to_mkldnn,
    "without data": lambda x: x.to("meta"),
    "a subclass": lambda x: x.as_subclass(Marked),
    "a wrapper": Held,
}
REFUSED_AS_RESULTS = {
    "nested": "Pad the tensors, or create it outside",
    "jagged": "nested",
    "MKL-DNN's": "to_mkldnn",
    "a subclass": "Return plain tensors",
    "a wrapper": "the class Held",
}
if not COMPRESSED_ARE_CAPTURED:
    REFUSED_AS_RESULTS["compressed"] = "Return its indices and values"
CAPTURED = {"sparse", "sparse, by coordinates", "compressed", "without data"}


def plain(tensor):
    """Converts a tensor of any kind to a plain one, to compare."""
    if isinstance(tensor, Held):
        return tensor.held
    if tensor.is_nested:
        return tensor.to_padded_tensor(0.0)
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor.to_dense() if tensor.layout is not torch.strided else tensor


def twice(x):
    if x.is_quantized:
        return x.dequantize() * 2
    return (x.to_dense() if x.is_mkldnn else x) * 2


def same(one, other):
    assert (type(one), one.layout, one.device) == (type(other), other.layout, other.device)
    if not one.is_meta:
        torch.testing.assert_close(plain(one), plain(other), check_layout=False)


@pytest.mark.parametrize("backend", ["replay", "inductor"])
@pytest.mark.parametrize("name", MAKE)
def test_as_arguments(name, backend):
    compiled = tl.compile(twice, backend=backend)
    compiled(X)
    for _ in range(2):
        same(compiled(MAKE[name](X)), twice(MAKE[name](X)))


@pytest.mark.parametrize("backend", ["replay", "inductor"])
@pytest.mark.parametrize("name", MAKE)
def test_as_results(name, backend):
    compiled = tl.compile(MAKE[name], backend=backend)
    if name in REFUSED_AS_RESULTS:
        with pytest.raises(tl.errors.TransformError, match=REFUSED_AS_RESULTS[name]):
            compiled(X)
    else:
        for x in (X, X + 1):
            same(compiled(x), MAKE[name](x))


@pytest.mark.parametrize("name", MAKE)
def test_captured(name):
    held = MAKE[name](X)
    compiled = tl.compile(lambda x: (x + 1, plain(twice(held))), backend="replay")
    if name in CAPTURED:
        same(compiled(X)[1], plain(twice(held)))
    else:
        with pytest.raises(
            tl.errors.TransformError, match=r"which a captured graph can't hold.*Capture"
        ):
            compiled(X)


@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_second_derivatives_of_a_product_with_a_captured_sparse_matrix(kind, shape):
    """They transpose its transpose."""
    matrix = getattr(torch.arange(9.0).view(3, 3) % 4, kind)()
    x = torch.ones(shape)
    gradient = tl.grad(lambda x: (matrix @ x).sin().sum())
    second = tl.grad(lambda x: gradient(x).sum())
    torch.testing.assert_close(tl.compile(second, backend="replay")(x), second(x))


def test_parameters_that_are_tensor_subclasses():
    class Weight(nn.Parameter):
        pass

    weight = Weight(X)
    assert type(weight) is Weight
    torch.testing.assert_close(tl.compile(lambda x: x * weight, backend="replay")(X), X * X)


def test_lazy_module_is_named_in_the_error():
    module = nn.LazyLinear(2)
    with pytest.raises(tl.errors.TransformError, match="UninitializedParameter"):
        tl.compile(module, backend="replay")(X)
