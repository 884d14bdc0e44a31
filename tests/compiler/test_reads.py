"""Functions that read values of tensors: compiled in parts, in any nest, as the eager function."""

import math
import threading
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import torchlayers as tl
from tests.support.calls import assert_same
from torchlayers.errors import BatchedValueError, DataDependentError

torch.manual_seed(0)
CALLS = [
    torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64),
    torch.tensor([-1.0, 0.25, -3.0], dtype=torch.float64),
    torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64),
    torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) * 3,
    torch.tensor([-0.1, 0.2, -0.3], dtype=torch.float64),
]


def branch(x):
    y = x.sin()
    if y.sum() > 0:
        return y * x
    return y.exp()


def loop(x):
    while x.norm() > 1:
        x = x * x.sigmoid() / 2
    return x * x


def checked(x):
    assert torch.isfinite(x).all()
    return x.cos()


def integer(x):
    for _ in range(int(x.abs().sum())):
        x = x.sin()
    return x


def number(x):
    low, high = x.min().item(), x.max().item()
    return x * (high - low) + math.exp(low) / (abs(high) + 1) + torch.full((3,), high)


def branch_on_a_number(x):
    norm = x.norm().item()
    return x / norm if norm > 2 else x * norm


def text(x):
    return x * len(f"{x.max().item():.0f}")


def written_list(x):
    a, b, c = x.tolist()
    return x * a + b * c


def flags(x):
    return x * sum((x > 0).tolist())


def array(x):
    return x * float(np.sign(x.detach().numpy()).sum()) if not is_layered(x) else x * x


def is_layered(x):
    return x.requires_grad or tl.current_stack() != ()


def close(x):
    return x.sin() if torch.allclose(x.abs(), x) else x.cos()


def equal(x):
    return x.sin() if torch.equal(x.abs(), x) else x.cos()


def mask(x):
    return x[x > 0].sin().sum() * x


def selected(x):
    return torch.masked_select(x, x > 0).exp().sum() + x


def places(x):
    return x[torch.nonzero(x > 0)[:, 0]].sum() * x


def classes(x):
    return x * torch.unique(x.detach().round()).numel()


def some_of_several_results(x):
    weights = torch.linspace(0, 1, 3)
    return torch.unique(x.detach().round()).sum() * x * weights


def in_place(x):
    y = x.clone()
    view = y.view(3, 1)
    while y.norm() > 1:
        y.mul_(0.5)
    view[0] += x[1]
    return y * x, view


READS = [branch, loop, checked, integer, number, branch_on_a_number, text, written_list, flags]
READS += [array, close, equal, mask, selected, places, classes]
READS += [some_of_several_results, in_place]


def total(f):
    return lambda x: sum(leaf.sum() for leaf in tl.tree.leaves(f(x)))


TRANSFORMS = {
    "plain": lambda f: f,
    "grad": lambda f: tl.grad(total(f)),
    "vmap(grad) of a shared value": lambda f: (
        lambda x: tl.vmap(lambda scale: tl.grad(total(f))(x) * scale)(x)
    ),
    "hessian": lambda f: tl.hessian(total(f)),
    "jvp": lambda f: lambda x: tl.jvp(total(f), (x,), (x.cos(),)),
}


def split_lines(compiled):
    return [signature.splits for signature in compiled.report().signatures]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("f", READS, ids=lambda f: f.__name__)
def test_calls_with_changing_values(f, transform):
    g = TRANSFORMS[transform](f)
    compiled = tl.compile(g, backend="replay")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "torchlayers")
        for x in CALLS:
            assert_same(compiled(x), g(x), rounded=True)
    assert len(compiled.report().signatures) == 1


@pytest.mark.parametrize("f", READS, ids=lambda f: f.__name__)
def test_under_autograd(f):
    compiled = tl.compile(f, backend="replay")
    for x in CALLS:
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        results, expected = total(compiled)(one), total(f)(other)
        results.backward(), expected.backward()
        assert_same((results.detach(), one.grad), (expected.detach(), other.grad), rounded=True)
    x = CALLS[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(compiled)(x), x, create_graph=True)
    (expected,) = torch.autograd.grad(total(f)(x), x, create_graph=True)
    if expected.requires_grad:
        pairs = [torch.autograd.grad(each.sum(), x) for each in (slope, expected)]
        assert_same(*pairs, rounded=True)


class SignOfCotangent(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g * 2 if g.sum() > 0 else g * 3


def test_a_backward_that_reads_its_cotangent_runs_uncompiled_under_autograd():
    x = CALLS[0].clone().requires_grad_()
    compiled = tl.compile(lambda x: SignOfCotangent.apply(x), backend="replay")
    with pytest.warns(UserWarning, match="reads a value that depends on a cotangent"):
        for sign, slope in ((1, 2.0), (-1, -3.0)):
            (gradient,) = torch.autograd.grad(sign * compiled(x).sum(), x)
            assert gradient.tolist() == [slope] * 3
    inside = tl.compile(tl.grad(lambda x: -SignOfCotangent.apply(x).sum()), backend="replay")
    assert inside(CALLS[0]).tolist() == [-3.0] * 3


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_samples_that_differ_are_an_error(transform):
    f = TRANSFORMS[transform](branch)
    with pytest.raises(BatchedValueError, match="batched"):
        tl.compile(tl.vmap(f), backend="replay")(torch.stack(CALLS))


def test_floats_need_no_split():
    compiled = tl.compile(lambda x: (x * x.max().item(), x.sum().item()), backend="replay")
    for x in CALLS:
        scaled, summed = compiled(x)
        assert_same(scaled, x * x.max())
        assert type(summed) is float and summed == x.sum().item()
    assert split_lines(compiled) == [()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
def test_a_float_promotes_as_in_eager(dtype):
    def f(x, y):
        v = y.max().item()
        return x * v, v - x, x.sum() / v, torch.where(x > 0, x, v), x > v, torch.tensor(v)

    compiled = tl.compile(f, backend="replay")
    for y in CALLS:
        x = torch.tensor([3.0, -1.0, 2.0]).to(dtype)
        assert_same(compiled(x, y), f(x, y), rounded=True)
    assert split_lines(compiled) == [()]


def test_functions_of_math_take_tensors():
    def f(x):
        y = x if math.isfinite(x.sum()) else x * 0
        return y * math.exp(x.min()) + math.sqrt(x.norm())

    compiled = tl.compile(f, backend="replay")
    for x in (*CALLS, CALLS[0] * torch.nan):
        assert_same(compiled(x), f(x), rounded=True)
    lines = split_lines(compiled)[0]
    assert len(lines) > 1 and all("read True" in line for line in lines[1:])


def test_a_float_fills_a_tensor_in_the_dtype_of_the_tensor():
    def f(x):
        value = x.max().item() / 3
        filled = torch.full((2,), value, dtype=torch.float64), torch.full((2,), value)
        like = torch.full_like(x, value, dtype=torch.float32), x.new_full((2,), value)
        return *filled, *like, x.clone().fill_(value), torch.ones(2, dtype=torch.int64).fill_(value)

    compiled = tl.compile(f, backend="replay")
    for x in CALLS:
        assert_same(compiled(x), f(x))
    assert split_lines(compiled) == [()]


def test_a_float_that_is_rounded_is_an_integer_that_is_read():
    def f(x):
        v = x.abs().sum().item()
        return x * int(v) + round(v) - math.floor(v / 2) + math.ceil(v), v == None  # noqa: E711

    compiled = tl.compile(f, backend="replay")
    shown = set()
    for scale in (1.02, 1.03, 1.04, 1.05):
        assert_same(compiled(CALLS[2] * scale), f(CALLS[2] * scale), rounded=True)
        shown.add(compiled.report().signatures[0].splits)
    assert len(shown) == 1
    with pytest.raises(ValueError, match="NaN"):
        compiled(CALLS[2] * torch.nan)


def test_a_float_that_is_stored_is_one_more_result():
    class Last:
        total = 0.0

    def f(x):
        Last.total = x.sum().item() * 2
        return x + 1

    compiled = tl.compile(f, backend="replay")
    for x in CALLS:
        compiled(x)
        assert type(Last.total) is float and Last.total == x.sum().item() * 2
    assert split_lines(compiled) == [()]


def test_errors_of_arithmetic_are_pythons():
    compiled = tl.compile(lambda x: 1 / x.sum().item() + math.log(x.max().item()), backend="replay")
    assert compiled(torch.tensor([1.0, 1.0])) == 0.5
    with pytest.raises(ZeroDivisionError):
        compiled(torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match=r"math domain|expected a positive"):
        compiled(torch.tensor([-1.0, -2.0]))
    assert compiled(torch.tensor([1.0, 3.0])) == 0.25 + math.log(3.0)


def test_a_step_that_comes_back_is_one_part():
    def root(x):
        for _ in range(50):
            step = (x * x - 2) / (2 * x)
            x = x - step
            if step.abs().max() < 1e-12:
                return x
        return x

    compiled = tl.compile(root, backend="replay")
    for scale in (1.0, 3.0, 30.0, 0.3, 5.0):
        x = CALLS[2] * scale
        assert_same(compiled(x), root(x), rounded=True)
    (lines,) = split_lines(compiled)
    assert lines[0].startswith("2 parts")
    assert "test_reads.py" in lines[1] and "if step.abs().max() < 1e-12:" in lines[1]


def test_writes_happen_once_and_in_order():
    total = torch.zeros(3, dtype=torch.float64)

    def f(x):
        x.add_(1)
        total.add_(x)
        if x.sum() > 0:
            x.mul_(2)
        return total * x

    compiled = tl.compile(f, backend="replay")
    for call in CALLS:
        x, y = call.clone(), call.clone()
        before = total.clone()
        results = compiled(x)
        after = total.clone()
        total.copy_(before)
        assert_same((results, x, after), (f(y), y, total))


def test_written_arguments_that_share_memory():
    def f(x, y):
        x.add_(1)
        return y * 2 if x.sum() > 0 else y * 3

    compiled = tl.compile(f, backend="replay")
    compiled(CALLS[0].clone(), CALLS[1].clone())
    for call in CALLS:
        x, y = call.clone(), call.clone()
        assert_same((compiled(x, x), x), (f(y, y), y))


def test_random_numbers_are_those_of_eager():
    def f(x):
        noise = F.dropout(x, 0.5)
        if noise.sum() > 0:
            noise = noise + torch.randn(3)
        y = torch.empty(3).uniform_()
        if y.sum() > 1.5:
            y = y * torch.rand(())
        return noise, y

    compiled = tl.compile(f, backend="replay")
    for seed in range(12):
        torch.manual_seed(seed)
        results = (*compiled(CALLS[seed % 5]), torch.rand(1))
        torch.manual_seed(seed)
        assert_same(results, (*f(CALLS[seed % 5]), torch.rand(1)))


def test_exception_in_the_middle():
    def f(x, state):
        state.add_(1)
        if x.sum() > 3:
            raise ValueError("too much")
        return x * state

    compiled = tl.compile(f, backend="replay")
    state = torch.zeros(3, dtype=torch.float64)
    for count, x in enumerate((*CALLS, *CALLS), 1):
        if x.sum() > 3:
            with pytest.raises(ValueError, match="too much"):
                compiled(x, state)
        else:
            compiled(x, state)
        assert state.tolist() == [count] * 3
    assert tl.current_stack() == ()


def test_python_values_are_guarded_on_each_path():
    gain = {"up": 2.0, "down": 3.0}

    def f(x):
        return x * (gain["up"] if x.sum() > 0 else gain["down"])

    compiled = tl.compile(f, backend="replay")
    for change in ({}, {"up": 5.0}, {"down": 7.0}, {"up": 2.0}):
        gain.update(change)
        for x in CALLS:
            assert_same(compiled(x), f(x))


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_what_a_function_of_one_path_reads_is_checked_before_its_answers_are_used(kind):
    state = {"gain": kind(1.0)}

    def is_small(x):  # which the first path does not call
        return (x * state["gain"]).sum() < -3

    def f(x):
        if x.sum() > 0:
            return x
        return x * 2 if is_small(x) else x * 3

    compiled = tl.compile(f, backend="replay")
    x = torch.ones(3)
    for scale, gain in ((1, 1), (-0.5, 1), (-0.5, 5), (-2, 5), (-0.5, 1), (-0.5, 5), (1, 1)):
        state["gain"] = kind(float(gain))
        assert_same(compiled(x * scale), f(x * scale))


def test_text_of_a_tensor_is_read():
    compiled = tl.compile(lambda x: (x * 2, repr(x[:2]), str(x.sum())), backend="replay")
    for x in CALLS[:3]:
        assert compiled(x)[1:] == (repr(x[:2]), str(x.sum()))
    with pytest.warns(UserWarning, match="prints a tensor of a transform"):
        compiled = tl.compile(tl.grad(lambda x: x.sum() * len(repr(x))), backend="replay")
        compiled(CALLS[0])


def test_a_number_whose_type_is_asked_for_is_read():
    def f(x):
        value = x.sum().item()
        return x * value if type(value) is float else x

    compiled = tl.compile(f, backend="replay")
    for x in CALLS[:3]:
        assert_same(compiled(x), f(x))


def test_a_tensor_of_a_list_of_numbers_needs_no_split():
    def f(x):
        rows = [[value, value * 2, 1] for value in x.tolist()]
        return torch.tensor(rows), torch.tensor(rows, dtype=torch.float64) @ x

    compiled = tl.compile(f, backend="replay")
    for x in CALLS:
        assert_same(compiled(x), f(x), rounded=True)
    assert split_lines(compiled) == [()]


def test_captured_tensors_of_each_path():
    up, down = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    compiled = tl.compile(lambda x: x * up if x.sum() > 0 else x + down, backend="replay")
    for x in CALLS:
        assert_same(compiled(x), x * up if x.sum() > 0 else x + down)
        up.add_(1), down.add_(1)


def test_threads():
    compiled = tl.compile(TRANSFORMS["grad"](loop), backend="replay")
    wrong = []

    def work(start):
        for i in range(30):
            x = CALLS[(start + i) % 5] * (1 + i % 3)
            result = compiled(x)
            if not torch.allclose(result, TRANSFORMS["grad"](loop)(x)):
                wrong.append((start, i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_new_answers_at_each_call_run_uncompiled_in_the_end():
    compiled = tl.compile(lambda x: x * int(x[0]), backend="replay")
    with pytest.warns(UserWarning, match=r"leads to new code.*int\(x\[0\]\)") as caught:
        for i in range(25):
            assert compiled(torch.tensor([i + 0.5])).tolist() == [(i + 0.5) * i]
    assert len(caught) == 1
    assert compiled(torch.tensor([3.5])).tolist() == [10.5]


def test_loop_that_reads_very_often_runs_uncompiled():
    def f(x):
        while x > 0:
            x = x - 1
        return x

    compiled = tl.compile(f, backend="replay")
    assert compiled(torch.tensor(9.0)) == 0
    with pytest.warns(UserWarning, match=r"more than 256 values.*while x > 0:"):
        assert compiled(torch.tensor(999.5)) == -0.5
    assert compiled(torch.tensor(9.0)) == 0
    assert compiled.report().signatures[0].splits[0].startswith("3 parts")


def in_a_branch(x):
    return tl.cond(x.sum() > 0, lambda x: x * 2 if x.max() > 1 else x, torch.cos, x)


def in_a_switch(x):
    functions = [torch.sin, lambda x: x[x > 0].sum() * x]
    return tl.switch((x > 0).any().long(), functions, x)


def in_a_loop(x):
    def body(carry):
        count, x = carry
        return count + 1, x / 2 if x.norm() > 1 else x + 1

    return tl.while_loop(lambda carry: carry[0] < 3, body, (torch.tensor(0), x))[1]


def in_a_long_scan(x):
    def body(carry, y):
        return (carry / 2 if carry.sum() > 1 else carry + y), carry.sum()

    return tl.scan(body, x, torch.arange(12.0))[1]


@pytest.mark.parametrize("name", ["plain", "grad"])
@pytest.mark.parametrize("f", [in_a_branch, in_a_switch, in_a_loop, in_a_long_scan])
def test_reads_in_control_flow(f, name):
    function = TRANSFORMS[name](f)
    compiled = tl.compile(function, backend="replay")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in CALLS:
            assert_same(compiled(x), function(x), rounded=True)
    assert compiled.report().signatures[0].splits


def test_what_has_no_values_while_it_is_captured_runs_uncompiled():
    f = lambda x: x + torch.from_dlpack(x.__dlpack__())  # noqa: E731
    compiled = tl.compile(f, backend="replay")
    with pytest.warns(UserWarning, match=r"runs uncompiled.*a capture has no values there"):
        assert_same(compiled(CALLS[0]), f(CALLS[0]))
    assert_same(compiled(CALLS[1]), f(CALLS[1]))


def test_report_shows_the_parts():
    compiled = tl.compile(branch, backend="replay")
    for x in CALLS:
        compiled(x)
    text = repr(compiled.report())
    assert "3 parts, split where values are read:" in text
    assert "test_reads.py" in text and "`if y.sum() > 0:`. read True, False" in text
    shown = compiled.report().show()
    assert [line for line in shown.splitlines() if line.startswith("--")] == [
        "-- reads and writes",
        "-- part 0, handed to the backend",
        "-- end 0, captured",
        "-- end 1, captured",
    ]
    assert "sin" in shown and "exp" in shown


@pytest.mark.parametrize("f", READS[:3], ids=lambda f: f.__name__)
def test_fullgraph_refuses(f):
    with pytest.raises(DataDependentError, match="asks for the value of a tensor"):
        tl.compile(f, backend="replay", fullgraph=True)(CALLS[0])
    with pytest.raises(DataDependentError):
        tl.compile(f, backend="replay").lower(CALLS[0])
    with pytest.raises(DataDependentError):
        tl.make_graph(f)(CALLS[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_change(dynamic):
    compiled = tl.compile(branch, backend="replay", dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in (3, 4, 5, 4, 3):
            for sign in (1, -1):
                x = torch.linspace(0.1, 1, size) * sign
                assert_same(compiled(x), branch(x), rounded=True)


def test_inductor_compiles_the_parts():
    compiled = tl.compile(TRANSFORMS["grad"](branch), wait=True)
    for x in (*CALLS, *CALLS):
        assert_same(compiled(x), TRANSFORMS["grad"](branch)(x), rounded=True)
    assert compiled.report().signatures[0].how == "inductor"
