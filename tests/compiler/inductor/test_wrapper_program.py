"""Inductor's Python wrapper parsed as a program: each kind of statement, and unsupported ones."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

import torchlayers as tl
from torchlayers._C import Program
from torchlayers.compiler.inductor.wrapper_program import program_of
from torchlayers.compiler.inductor.wrapper_reader import Layout

X = torch.linspace(0.5, 2, 6).reshape(2, 3)
Y = torch.linspace(-1, 1, 6).reshape(2, 3)

MODULE = """
import torch
import torch._inductor.select_algorithm
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
reinterpret_tensor = torch.ops.inductor._reinterpret_tensor
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
extern_kernels = torch._inductor.select_algorithm.extern_kernels
assert_size_stride_grouped = assert_tensor_metadata = lambda *args: None
constant0 = torch.ones(2, 3)
device_guard = torch.device("cpu")

class Runner:
    def call(self, args):
        {unpack} = args
        args.clear()
{body}

call = Runner().call
"""


def code_of(path, body, unpack="arg0_1, arg1_1"):
    """Returns a stand-in for Inductor's compiled code, whose function has these lines."""
    lines = "".join(f"        {line}\n" for line in body)
    path.write_text(MODULE.format(unpack=unpack, body=lines))
    spec = importlib.util.spec_from_file_location("wrapper", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return SimpleNamespace(inputs_to_check=[], device_types={"cpu"}, current_callable=module.call)


MM = "extern_kernels.mm(arg0_1, reinterpret_tensor(arg1_1, (3, 2), (1, 3), 0), out=buf0)"
BODIES = {
    "inputs": ["return (arg1_1, arg0_1, arg1_1, )"],
    "memory and a product": [
        "assert_size_stride(arg0_1, (2, 3), (3, 1), 'input')",
        "buf0 = empty_strided_cpu((2, 2), (2, 1), torch.float32)",
        MM,
        "del arg0_1",
        "buf1 = buf0; del buf0  # reuse",
        "return (buf1, )",
    ],
    "an operator": [
        "buf0 = torch.ops.aten.cumsum.default(arg0_1, 1)",
        "assert_size_stride(buf0, (2, 3), (3, 1), 'torch.ops.aten.cumsum.default')",
        "return (reinterpret_tensor(buf0, (2, ), (3, ), 2), )",
    ],
    "checks of 2.15": [
        "assert_size_stride_grouped((arg0_1, arg1_1), ((2, 3), (2, 3)), ((3, 1), (3, 1)), 'input')",
        "buf0 = torch.ops.aten.cumsum.default(arg0_1, 1)",
        "assert_tensor_metadata(buf0, (2, 3), (3, 1), torch.float32, 'torch.ops.aten.cumsum')",
        "return (buf0, )",
    ],
    "an operator of several results": [
        "buf0 = torch.ops.aten.sort.stable(arg0_1, stable=True, dim=-1, descending=True)",
        "buf1 = buf0[0]",
        "buf2 = buf0[1]",
        "return (buf2, buf1, )",
    ],
    "an operator that returns a list": [
        "buf0 = torch.ops.aten.split.Tensor(arg0_1, 2, -1)",
        "return (buf0[1], None, )",
    ],
    "a tensor of the module": [
        "buf0 = torch.ops.aten.add.Tensor(arg0_1, constant0)",
        "return (buf0, 7, )",
    ],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_supported_statements(body, tmp_path):
    code = code_of(tmp_path / "module.py", body)
    program = program_of(code)
    assert isinstance(program, Program)
    for _ in range(2):
        torch.testing.assert_close(
            tuple(program([X, Y])), code.current_callable([X, Y]), rtol=0, atol=0
        )


UNKNOWN = {
    "a branch": ["if arg0_1.sum() > 0:", "    return (arg0_1, )", "return (arg1_1, )"],
    "another device": ["with device_guard:", "    buf0 = arg0_1", "return (buf0, )"],
    "a function": ["return (print(arg0_1), )"],
    "a method": ["return (arg0_1.sin(), )"],
    "arithmetic": ["return (arg0_1 + 1, )"],
    "a kernel of unknown types": ["cpp_fused_0(arg0_1, arg1_1)", "return (arg0_1, )"],
    "sizes that are tensors": [
        "s0 = arg0_1",
        "buf0 = empty_strided_cpu((s0, ), (1, ), torch.float32)",
        "return (buf0, )",
    ],
    "no result": ["arg0_1 = arg1_1"],
}


def test_sizes_that_are_symbols_are_read_from_the_inputs(tmp_path):
    body = [
        "arg0_1_size = arg0_1.size()",
        "s0 = arg0_1_size[0]",
        "s1 = arg1_1.stride()[0]",
        "buf0 = empty_strided_cpu((max(s0 - 1, 2)*s1 // 2, ), (s1 % 2, ), torch.float32)",
        "buf1 = torch.ops.aten.cumsum.default(arg0_1, s1 - s0)",
        "return (reinterpret_tensor(buf1, (s0, ), (s1, ), s1 - 1), buf0, s0 + s1, )",
    ]
    code = code_of(tmp_path / "module.py", body)
    assert program_of(code) is None
    program = program_of(code, inputs=[Layout((None, None), (None, None))] * 2)
    for x, y in ((X, Y), (torch.randn(2, 4), torch.randn(5, 3)), (torch.randn(3, 3), Y)):
        found, expected = program([x, y]), code.current_callable([x, y])
        torch.testing.assert_close(found[0], expected[0])
        assert (found[1].shape, found[1].stride()) == (expected[1].shape, expected[1].stride())
        assert found[2] == expected[2]


@pytest.mark.parametrize("body", UNKNOWN.values(), ids=UNKNOWN)
def test_unsupported_wrapper_is_not_parsed(body, tmp_path):
    assert program_of(code_of(tmp_path / "module.py", body)) is None


def test_wrapper_for_another_device_is_not_parsed(tmp_path):
    code = code_of(tmp_path / "module.py", BODIES["inputs"])
    code.device_types = {"cuda"}
    assert program_of(code) is None


LAYOUT_CHECKS = (
    "assert_size_stride(buf0, (2, 3), (1, 2), 'torch.ops.aten.cumsum.default')",
    "assert_tensor_metadata(buf0, (2, 3), (1, 2), torch.float32, 'torch.ops.aten.cumsum')",
    "assert_size_stride_grouped((arg0_1, buf0), ((2, 3), (2, 3)), ((3, 1), (1, 2)), 'cumsum')",
)


@pytest.mark.parametrize("check", LAYOUT_CHECKS)
def test_unexpected_layout_is_an_error(check, tmp_path):
    body = ["buf0 = torch.ops.aten.cumsum.default(arg0_1, 1)", check, "return (buf0, )"]
    program = program_of(code_of(tmp_path / "module.py", body))
    with pytest.raises(
        RuntimeError, match=r"torchlayers: compiled code expected an operator to return"
    ):
        program([X, Y])


FUNCTIONS = {
    "elementwise": (lambda x, y: (x.sin() * y, x + 1), (X, Y)),
    "sixty tensors": (
        lambda *tensors: [x + 1 for x in tensors],
        tuple(torch.full((3,), float(i)) for i in range(30)),
    ),
    "a product, and an operator": (
        lambda x, y: (x @ y).relu().sort(0),
        (torch.randn(64, 64), torch.randn(64, 64)),
    ),
    "written to": (lambda x, y: x.mul_(2) + y, (X, Y)),
}


@pytest.mark.sweep
def test_writes_bump_the_version_counter():
    function = tl.compile(lambda x: x.mul_(2).sum())
    x, weight = X.clone(), Y.clone().requires_grad_()
    function(x)
    for _ in range(2):
        product = (x * weight).sum()
        function(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


@pytest.mark.sweep
@pytest.mark.parametrize(("f", "inputs"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_inductors_wrappers_are_parsed(f, inputs):
    function = tl.compile(f)
    given, expected = ([x.clone() for x in inputs] for _ in range(2))
    for _ in range(3):
        torch.testing.assert_close(function(*given), f(*expected))
        torch.testing.assert_close(given, expected)
    run = function._entries.all[0].run
    assert isinstance(getattr(run, "run", run), Program)


@pytest.mark.sweep
def test_more_tensors_than_a_kernel_is_called_with():
    inputs = [torch.full((3,), float(i)) for i in range(100)]
    function = tl.compile(lambda *tensors: [x + 1 for x in tensors])
    for _ in range(2):
        torch.testing.assert_close(function(*inputs), [x + 1 for x in inputs])


SUBGRAPHS = """
def ask(args):
    ask_0, ask_1 = args
    args.clear()
    buf0 = torch.ops.aten.sum.default(ask_0)
    buf1 = torch.ops.aten.lt.Scalar(buf0, 100.0)
    return (buf1, )

def step(args):
    step_0, step_1 = args
    args.clear()
    buf0 = torch.ops.aten.add.Tensor(step_0, step_1)
    return (buf0, )
"""
LOOP = [
    "buf0 = [None] * 1",
    "buf0[0] = arg0_1",
    "ask_args = [buf0[0], reinterpret_tensor(arg1_1, (2, 3), (3, 1), 0)]",
    "(buf0_cond_result,) = ask(ask_args)",
    "should_loop = buf0_cond_result",
    "if not should_loop:",
    "    buf0[0] = arg0_1.clone()",
    "while should_loop:",
    "    step_args = [buf0[0], reinterpret_tensor(arg1_1, (2, 3), (3, 1), 0)]",
    "    (buf0[0],) = step(step_args)",
    "    ask_args = [buf0[0], reinterpret_tensor(arg1_1, (2, 3), (3, 1), 0)]",
    "    (buf0_cond_result,) = ask(ask_args)",
    "    should_loop = buf0_cond_result",
    "buf1 = buf0[0]",
    "return (buf1, )",
]


def loop_code_of(path, body, monkeypatch):
    monkeypatch.setitem(globals(), "MODULE", SUBGRAPHS + MODULE)
    return code_of(path, body)


@pytest.mark.parametrize("start", [X, X + 100])
def test_loop(start, tmp_path, monkeypatch):
    code = loop_code_of(tmp_path / "module.py", LOOP, monkeypatch)
    program = program_of(code)
    assert isinstance(program, Program)
    [found] = program([start, Y.abs()])
    [expected] = code.current_callable([start, Y.abs()])
    torch.testing.assert_close(found, expected)
    assert found.data_ptr() != start.data_ptr()


@pytest.mark.parametrize(
    "place, line",
    [
        (8, "    step_args = [reinterpret_tensor(arg1_1, (2, 3), (3, 1), 0), buf0[0]]"),
        (10, "    ask_args = [buf0[0], reinterpret_tensor(arg1_1, (2, 3), (3, 1), 3)]"),
        (11, "    (buf0_cond_result,) = step(ask_args)"),
        (12, "    should_loop = arg0_1"),
    ],
)
def test_other_loops_are_not_parsed(place, line, tmp_path, monkeypatch):
    body = [*LOOP]
    body[place] = line
    assert program_of(loop_code_of(tmp_path / "module.py", body, monkeypatch)) is None
