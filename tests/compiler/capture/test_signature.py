"""When a call is captured again, what report() says about it, and which calls are rejected."""

import dataclasses
import functools
import math
import warnings

import pytest
import torch

import torchlayers as tl

replayed = functools.partial(tl.compile, backend="replay")

ONES = torch.ones(4, 2)


@dataclasses.dataclass(frozen=True)
class Options:
    power: int


@dataclasses.dataclass(frozen=True)
class Weights:
    value: torch.Tensor


# Two calls, and why the second is captured again.
DIFFERENT = {
    "shape": ((ONES,), (torch.ones(9, 2),), "argument 0 has shape (9, 2), was (4, 2)"),
    "dtype": (
        (ONES,),
        (ONES.double(),),
        "argument 0 has dtype torch.float64, was torch.float32",
    ),
    "strides": ((ONES,), (torch.ones(2, 4).t(),), "argument 0 has stride (1, 4), was (2, 1)"),
    "requires grad": (
        (ONES,),
        (torch.ones(4, 2, requires_grad=True),),
        "argument 0 requires grad, and did not",
    ),
    "in a container": (
        (ONES, {"a": [ONES]}),
        (ONES, {"a": [ONES[0]]}),
        "argument 1, ['a'][0] has shape (2,), was (4, 2)",
    ),
    "structure": (
        (ONES, (ONES,)),
        (ONES, [ONES]),
        "the arguments have the structure ((*, [*]), {}), had ((*, (*,)), {})",
    ),
    "a number": ((ONES, 2), (ONES, 3), "argument 1 is 3, was 2"),
    "an int and a bool": ((ONES, 1), (ONES, True), "argument 1 is True, was 1"),
    "an int and a float": ((ONES, 1), (ONES, 1.0), "argument 1 is 1.0, was 1"),
    "zeros": ((ONES, 0.0), (ONES, -0.0), "argument 1 is -0.0, was 0.0"),
    "a string": ((ONES, "sum"), (ONES, "mean"), "argument 1 is 'mean', was 'sum'"),
    "an object with a hash": (
        (ONES, Options(1)),
        (ONES, Options(2)),
        "argument 1 is Options(power=2), was Options(power=1)",
    ),
    "a tensor and a number": ((ONES, 1.0), (ONES, ONES[0, 0]), "argument 1 is f32[], was 1.0"),
}

SAME = {
    "other values": ((ONES,), (ONES * 3,)),
    "another part of memory": ((torch.ones(2),), (torch.ones(5)[2:4],)),
    "a parameter": ((torch.ones(2, requires_grad=True),), (torch.nn.Parameter(torch.ones(2)),)),
    "nan": ((ONES, float("nan")), (ONES, float("nan"))),
    "an equal object": ((ONES, Options(1)), (ONES, Options(1))),
    "a dtype": ((ONES, torch.float64), (ONES, torch.float64)),
    "a slice": ((ONES, slice(1, 3)), (ONES, slice(1, 3))),
}


def first(x, *rest):
    return x + 1


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_arguments_are_captured_again(name):
    one, other, why = DIFFERENT[name]
    compiled = replayed(first)
    compiled(*one)
    compiled(*other)
    assert [entry.why for entry in compiled.report().signatures] == ["", why]


@pytest.mark.parametrize("size", [1, 2])
def test_opaque_objects_with_tensors_are_compared_by_identity(size):
    compiled = replayed(lambda x, weights: x * weights.value)
    one, other = Weights(torch.ones(size)), Weights(torch.ones(size))
    for weights in (one, other, one, other):
        compiled(torch.ones(2), weights)
    assert [entry.calls for entry in compiled.report().signatures] == [2, 2]
    one.value.fill_(3)
    assert compiled(torch.ones(2), other).tolist() == [1, 1]
    assert compiled(torch.ones(2), one).tolist() == [3, 3]


def test_another_slice_is_captured_again():
    compiled = replayed(lambda x, places: x[places])
    assert [compiled(ONES, slice(0, n)).shape[0] for n in (1, 2, 1, 2)] == [1, 2, 1, 2]
    assert [entry.calls for entry in compiled.report().signatures] == [2, 2]


@pytest.mark.parametrize("name", SAME)
def test_equal_signatures_are_not_captured_again(name):
    one, other = SAME[name]
    compiled = replayed(first)
    compiled(*one)
    torch.testing.assert_close(compiled(*other), first(*other))
    assert len(compiled.report().signatures) == 1


MODES = {
    "grad mode is off": torch.no_grad,
    "inference mode is on": torch.inference_mode,
    "the autocast state has changed": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("why", MODES)
def test_modes_are_a_part_of_the_signature(why):
    weight = torch.randn(2, 3)

    def f(x):
        return x @ weight, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    compiled = replayed(f)
    compiled(ONES)
    with MODES[why]():
        result, expected = compiled(ONES), f(ONES)
    torch.testing.assert_close(result, expected)
    assert result[0].is_inference() == expected[0].is_inference()
    said = compiled.report().signatures[-1].why
    assert said == why or why.startswith("inference")  # inference mode turns grad mode off, too


def test_the_default_dtype_is_a_part_of_the_signature():
    compiled = replayed(lambda: torch.zeros(2))
    assert compiled().dtype == torch.float32
    try:
        torch.set_default_dtype(torch.float64)
        assert compiled().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert compiled.report().signatures[-1].why == "the default dtype is torch.float64"


def test_the_default_device_is_a_part_of_the_signature():
    compiled = replayed(lambda: torch.zeros(2))
    for device in ("cpu", "meta", "cpu"):
        with torch.device(device):
            for _ in range(3):
                assert compiled().device.type == device
    assert [each.calls for each in compiled.report().signatures] == [6, 3]
    assert compiled.report().signatures[-1].why == "the default device is meta"


def test_the_innermost_default_device_counts():
    compiled = replayed(lambda: torch.zeros(2))
    for outer, inner in (("cpu", "meta"), ("meta", "cpu")):
        with torch.device(outer), torch.device(inner):
            for _ in range(2):
                assert compiled().device.type == inner
    assert [each.calls for each in compiled.report().signatures] == [2, 2]


def test_second_order_makes_tensors_on_the_default_device():
    with torch.device("meta"):
        compiled = replayed(lambda x: (x**3 * torch.ones(2)).sum())
        x = torch.ones(2, requires_grad=True)
        (slope,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    assert torch.autograd.grad(slope.sum(), x)[0].device.type == "meta"


@pytest.mark.parametrize("places", [1, (1,), [-1]])
def test_a_static_argument_is_a_constant_as_a_whole(places):
    compiled = replayed(lambda x, dims: x.sum(dims), static_argnums=places)
    assert compiled(ONES, (0,)).tolist() == [4, 4]
    assert compiled(ONES, (0, 1)).item() == 8
    assert compiled.report().signatures[-1].why == "a static argument is (0, 1), was (0,)"


def test_more_static_arguments_are_a_new_signature():
    f = tl.compile(lambda x, n=1, m=1: x * n * m, static_argnums=(1, 2), backend="replay")
    x = torch.ones(2)
    for args in ((), (2,), (2, 3)):
        torch.testing.assert_close(f(x, *args), x * math.prod(args))
    why = [entry.why for entry in f.report().signatures]
    assert why == [
        "",
        "1 of the arguments are static, 0 were",
        "2 of the arguments are static, 1 were",
    ]


def test_report_describes_the_captures():
    compiled = replayed(torch.sin)
    for size in (8, 9, 8):
        compiled(torch.ones(size))
    report = compiled.report()
    assert [(entry.arguments, entry.how, entry.calls) for entry in report.signatures] == [
        ("f32[8]", "replay", 2),
        ("f32[9]", "replay", 1),
    ]
    assert all(entry.seconds > 0 and entry.operators == 1 for entry in report.signatures)
    lines = str(report).splitlines()
    assert lines[0] == "sin: 2 signatures"
    assert lines[-1].strip() == "new because argument 0 has shape (9,), was (8,)"


def test_repeated_captures_warn_once():
    compiled = replayed(lambda x, n: x + n)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(20):
            compiled(torch.ones(()), n)
    (warning,) = caught
    assert "was captured 8 times, most recently because argument 1 is 7, was 6" in str(
        warning.message
    )


# Rejected


class Unhashable:
    __hash__ = None


@dataclasses.dataclass
class Thawed:
    x: torch.Tensor


@pytest.mark.parametrize(
    "value, message",
    [
        (set(), r"argument 1 is of type set, which is not hashable: .* Make it a frozenset"),
        (Unhashable(), r"argument 1 is of type Unhashable, .* Give its class __hash__"),
        (Thawed(torch.ones(2)), r"argument 1 is of type Thawed, .* Make it frozen \(@dataclass"),
        (
            torch.ones(2).numpy(),
            r"argument 1 is of type ndarray, .* Make it a tensor \(torch.as_tensor\)",
        ),
    ],
)
def test_unhashable_arguments_are_rejected(value, message):
    with pytest.raises(tl.errors.TransformError, match=message):
        replayed(first)(ONES, value)


@pytest.mark.parametrize("value", [{}, []])
def test_a_static_argument_needs_a_hash(value):
    with pytest.raises(tl.errors.TransformError, match=r"Make it .*non-static argument"):
        replayed(first, static_argnums=1)(ONES, value)


DATA_DEPENDENT = {
    "a format": lambda x: f"{x.sum():.2f}",
    "an assertion of torch's": lambda x: torch.testing.assert_close(x, x),
    "an array": lambda x: x * x.new_ones(3).numpy(),
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "item": lambda x: x * x.sum().item(),
    "float": lambda x: x * float(x.sum()),
    "tolist": lambda x: x.sum().tolist(),
    "numpy": lambda x: torch.from_numpy(x.detach().numpy()),
    "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "unique": lambda x: x.unique(),
    "a branch in a grad": lambda x: tl.grad(lambda x: x.sum() if x.sum() > 0 else x.prod())(x),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_data_dependent_python_is_rejected(name):
    compiled = replayed(DATA_DEPENDENT[name], fullgraph=True)
    with pytest.raises(tl.errors.DataDependentError) as caught:
        compiled(ONES)
    message = str(caught.value)
    assert "In test_signature.py:" in message and f'"{name}": lambda' in message
    assert ("torch.as_tensor" if ".numpy()" in message else "torch.where or torch.cond") in message
    assert tl.current_stack() == ()


def test_suggested_workarounds_work():
    assert replayed(lambda x: torch.where(x.sum() > 0, x, -x))(ONES).sum() == 8
    assert replayed(lambda x, sign: x if sign else -x, static_argnums=1)(ONES, False).sum() == -8


def test_constant_values_may_be_read():
    assert replayed(lambda x: x * torch.tensor(3.0).item())(ONES).sum() == 24


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tl.compile(first, backend="tvm"), "unknown backend 'tvm'"),
        (
            lambda: tl.compile(first, static_argnums="x"),
            "static_argnums must be an int or a sequence of ints",
        ),
        (
            lambda: tl.compile(lambda a, b: a, static_argnums=(0, -3)),
            "contains -3, but <lambda> takes",
        ),
        (lambda: tl.compile(static_argnums=2)(lambda a, b: a), "takes only 2 positional arguments"),
        (lambda: tl.compile(3), "f must be a function, but is of type int"),
    ],
)
def test_misuse_is_rejected(make, message):
    with pytest.raises(tl.errors.TransformError, match=message):
        make()


def test_a_captured_conjugate_is_refused():
    captured = torch.ones(2, dtype=torch.complex64).conj()
    with pytest.raises(tl.errors.TransformError, match="captures a tensor that is conjugated"):
        replayed(lambda x: x * captured)(torch.ones(2))


def test_a_conjugate_is_inlined():
    x = torch.tensor([1 + 2j]).conj()
    assert replayed(lambda x: x.imag)(x).tolist() == [-2]
