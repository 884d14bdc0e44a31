"""Tensors of every kind: torch.func's result, or its kind of error."""

import functools
import re

import pytest
import torch
import torch.func
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import ambient, assert_same, run
from tests.support.traced_steps import traced_steps

X = torch.tensor([[0.5, 1.0, 2.0], [1.5, -1.0, 0.3]])
Y = torch.linspace(0.1, 0.6, 6).reshape(2, 3)

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse .* tensor support is in beta:UserWarning",
    "ignore:The PyTorch API of nested tensors:UserWarning",
    "ignore:There is a performance drop:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:.*quantized.*:DeprecationWarning",
)


class Named(Tensor):
    """Overrides functions with the default of every subclass."""


class Counting(Tensor):
    """Overrides functions, and counts the calls."""

    calls: int = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.sin, torch.mul, Tensor.mul, torch.sum, Tensor.sum):
            cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Logging(Tensor):
    """Holds a tensor, and logs the operators that reach it."""

    log: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, strides=inner.stride()
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.log.append(str(func))
        args, kwargs = pytree.tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return pytree.tree_map_only(Tensor, cls, func(*args, **kwargs))


def complex_values(dtype):
    return torch.complex(X, X.flip(0)).to(dtype)


def made_in_inference_mode():
    with torch.inference_mode():
        return X.clone()


def nested(layout):
    return torch.nested.nested_tensor([X[0], X[1, :2]], layout=layout)


KINDS = {
    "complex64": lambda: complex_values(torch.complex64),
    "complex128": lambda: complex_values(torch.complex128),
    "half": X.half,
    "bfloat16": X.bfloat16,
    "float8": lambda: X.to(torch.float8_e4m3fn),
    "int64": X.long,
    "bool": lambda: X > 0,
    "uint16": lambda: X.abs().to(torch.uint16),
    "sparse COO": X.to_sparse,
    "sparse COO that requires grad": lambda: X.to_sparse().requires_grad_(),
    "sparse CSR": X.to_sparse_csr,
    "sparse BSR": lambda: X[:, :2].to_sparse_bsr((1, 1)),
    "nested, strided": lambda: nested(torch.strided),
    "nested, jagged": lambda: nested(torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(X, 0.1, 10, torch.qint8),
    "mkldnn": X.to_mkldnn,
    "meta": lambda: X.to("meta"),
    "torch_function subclass": lambda: X.as_subclass(Named),
    "counting torch_function subclass": lambda: X.as_subclass(Counting),
    "torch_dispatch subclass": lambda: Logging(X),
    "parameter": lambda: nn.Parameter(X.clone()),
    "buffer": lambda: nn.Buffer(X.clone()),
    "without elements": lambda: X[:, :0],
    "empty batch": lambda: X[:0],
    "without dimensions": lambda: X[0, 0],
    "non-contiguous": X.t,
    "strided": lambda: X[:, ::2],
    "diagonal": X.diagonal,
    "expanded": lambda: X[0].expand(2, 3),
    "conj view": lambda: complex_values(torch.complex64).conj(),
    "neg view": lambda: complex_values(torch.complex64).conj().imag,
    "channels last": lambda: torch.rand(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    "efficient zeros": lambda: torch._efficientzerotensor((2, 3)),
    "requires grad": lambda: X.clone().requires_grad_(),
    "recorded": lambda: X.clone().requires_grad_() * 2,
    "view of a leaf": lambda: X.clone().requires_grad_().view(3, 2),
    "made in inference mode": made_in_inference_mode,
}

OPERATORS = {
    "sin": torch.sin,
    "mul": lambda x: x * x,
    "sum": lambda x: x.sum(),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "clone": torch.clone,
}
# With a captured tensor of the kind instead of an argument.
CAPTURING = {
    "mul": torch.mul,
    "matmul": lambda kind, x: kind.t() @ x,
    "add": lambda kind, x: x + kind,
    "alone": lambda kind, x: kind.clone(),
}


def scalar(f):
    def summed(*args):
        total = f(*args).sum()
        return total.abs() if total.is_complex() else total

    return summed


def pulled_back(tf, f, x):
    output, vjp_fn = tf.vjp(f, x)
    return output, vjp_fn(output)


TRANSFORMS = {
    "grad": lambda tf, f: tf.grad(scalar(f)),
    "vjp": lambda tf, f: functools.partial(pulled_back, tf, f),
    "jvp": lambda tf, f: lambda x: tf.jvp(f, (x,), (x,)),
    "vmap": lambda tf, f: tf.vmap(f),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(scalar(f))),
    "functionalize": lambda tf, f: tf.functionalize(f),
}

# (kind, transform, how): why torchlayers differs from torch.func. A test fails for an unlisted
# difference, and for a listed one that does not occur.
PULLED_BACK = (
    "torch.func pulls back by a function that the output's class overrides, which makes the "
    "gradient one of that class"
)
REPEATED = (
    "a result that does not depend on the batch is repeated by unsqueeze and expand, in torch.func "
    "by expand alone; both are refused where the kind has neither"
)
OTHER_OPERATORS = "rules of our own call other operators than torch's"
NOT_IN_MEMORY = "torch.func can't return it; ours does"
IN_A_RULE = "refused by an operator of our rule, in torch.func when it is wrapped"
OF_ITS_CLASS = (
    "a result is of the class that it has without functionalize; in torch.func not where an "
    "argument took part"
)
COMPRESSED = "torch.func asks a compressed sparse tensor for strides; ours wraps it without"
DIFFERENCES = {
    **{
        (kind, transform, "captured"): COMPRESSED
        for kind in ("sparse CSR", "sparse BSR")
        for transform in ("grad", "vjp", "jvp", "vmap(grad)")
    },
    **{
        (kind, transform, "argument"): COMPRESSED
        for kind in ("sparse CSR", "sparse BSR")
        for transform in ("grad", "vjp")
    },
    ("sparse COO", "jvp", "captured"): NOT_IN_MEMORY,
    ("sparse COO that requires grad", "jvp", "captured"): NOT_IN_MEMORY,
    ("float8", "jvp", "argument"): "refused by addcmul, in torch.func by add",
    ("torch_dispatch subclass", "grad", "argument"): OTHER_OPERATORS,
    ("torch_dispatch subclass", "grad", "captured"): OTHER_OPERATORS,
    ("torch_dispatch subclass", "vjp", "argument"): OTHER_OPERATORS,
    ("torch_dispatch subclass", "vjp", "captured"): OTHER_OPERATORS,
    ("torch_dispatch subclass", "jvp", "argument"): OTHER_OPERATORS,
    ("torch_dispatch subclass", "jvp", "captured"): OTHER_OPERATORS,
    ("torch_dispatch subclass", "vmap(grad)", "argument"): OTHER_OPERATORS,
    ("torch_dispatch subclass", "vmap(grad)", "captured"): OTHER_OPERATORS,
    ("torch_function subclass", "vjp", "captured"): PULLED_BACK,
    ("counting torch_function subclass", "vjp", "captured"): PULLED_BACK,
    ("torch_function subclass", "functionalize", "captured"): OF_ITS_CLASS,
    ("counting torch_function subclass", "functionalize", "captured"): OF_ITS_CLASS,
    ("torch_dispatch subclass", "vmap", "captured"): REPEATED,
    ("nested, jagged", "vmap", "captured"): REPEATED,
    ("nested, strided", "jvp", "captured"): IN_A_RULE,
    ("nested, jagged", "jvp", "captured"): IN_A_RULE,
    ("sparse COO", "jvp", "argument"): "refused in words, as a StructureError",
    ("sparse COO that requires grad", "jvp", "argument"): "refused in words, as a StructureError",
    ("nested, strided", "jvp", "argument"): "refused for having no sizes, in torch.func for having "
    "no strides",
}


def outcome(tf, call):
    """The result and what the subclasses saw, or the error."""
    Logging.log.clear()
    Counting.calls = 0
    try:
        result = run(call, tf)
    except Exception as error:
        return error
    return pytree.tree_map(plain, result), list(Logging.log), Counting.calls


def plain(value):
    """Replaces a tensor that can't be compared by one that can."""
    if isinstance(value, Logging):
        return ("logging", value.inner)
    if isinstance(value, Tensor) and value.is_nested:
        return ("nested", *value.unbind())
    if isinstance(value, Tensor) and value.layout is torch._mkldnn:
        return ("mkldnn", value.to_dense())
    return value


def differs(call):
    theirs = outcome(torch.func, call)
    before = ambient()
    with traced_steps() as events:
        ours = outcome(tl, call)
    assert ambient() == before
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        # torchlayers' own errors are raised where torch.func raises too; others are torch's.
        said = {re.sub(r"\d+", "", str(error)) for error in (theirs, ours)}
        own = str(ours).startswith("torchlayers: ")
        return not isinstance(ours, type(theirs)) or not (own or len(said) == 1)
    try:
        assert_same(ours, theirs, rounded=any(event.step == "rule" for event in events))
    except AssertionError:
        return True
    return False


def check(how, kind, transform, calls):
    different = [name for name, call in calls.items() if differs(call)]
    assert bool(different) == ((kind, transform, how) in DIFFERENCES), different


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_tensor_of_any_kind_as_an_argument(transform, kind):
    calls = {
        name: lambda tf, f=f: TRANSFORMS[transform](tf, f)(KINDS[kind]())
        for name, f in OPERATORS.items()
    }
    check("argument", kind, transform, calls)


# Their results are uninitialized memory in plain code too.
NOT_CAPTURED = ("meta",)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NOT_CAPTURED])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_tensor_of_any_kind_captured(transform, kind):
    calls = {
        name: lambda tf, f=f: TRANSFORMS[transform](tf, functools.partial(f, KINDS[kind]()))(Y)
        for name, f in CAPTURING.items()
    }
    check("captured", kind, transform, calls)


@pytest.mark.parametrize("kind", ["torch_function subclass", "parameter", "buffer"])
@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp", "vmap"])
def test_the_function_gets_a_tensor_of_torch_funcs_type(transform, kind):
    seen = {tl: [], torch.func: []}
    for tf in seen:
        TRANSFORMS[transform](tf, lambda x, tf=tf: seen[tf].append(type(x)) or x)(KINDS[kind]())
    assert seen[tl] == seen[torch.func]


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("use", CAPTURING)
def test_functionalize_keeps_the_class_that_a_result_has_without_it(use, remove):
    f = functools.partial(CAPTURING[use], X.as_subclass(Named))
    result = tl.functionalize(f, remove=remove)(Y)
    assert type(result) is Named
    torch.testing.assert_close(result, f(Y), rtol=0, atol=0)


@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp", "vmap", "vmap(grad)"])
def test_a_torch_dispatch_subclass_sees_every_operator_below_the_layers(transform):
    Logging.log.clear()
    TRANSFORMS[transform](tl, torch.sin)(Logging(X))
    assert "aten.sin.default" in Logging.log
    assert ("aten.cos.default" in Logging.log) == (transform != "vmap")
