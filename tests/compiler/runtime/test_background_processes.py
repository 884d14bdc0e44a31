"""Compiling processes: real ones, and so few tests. Each function has another constant in it, which
no cache has seen."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import pytest
import torch

import torchlayers as tl
from torchlayers.compiler.inductor import cache_directory, code_cache
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.inductor.program_description import Kernel
from torchlayers.compiler.runtime import background

X = torch.linspace(0, 1, 3)


def how(compiled):
    return [entry.how for entry in compiled.report().signatures]


def new_number():
    """One that no cache has seen, whatever seed another test has set."""
    return random.SystemRandom().random()


def scaled(number):
    return lambda x: (x.sin() * number).cumsum(0)


@pytest.fixture
def not_here(monkeypatch):
    """Inductor must not run in this process."""

    def fails(*_):
        raise AssertionError("compiled in this process")

    monkeypatch.setattr(inductor, "lower_graph", fails)


def test_another_process_compiles_and_the_disk_keeps_the_code(not_here):
    f = scaled(new_number())
    for loss in (f, tl.vmap(tl.grad(lambda x: f(x[None]).sum()))):
        compiled = tl.compile(loss, wait=False)
        torch.testing.assert_close(compiled(X), loss(X))
        assert how(compiled) == ["replay, until compiled"]
        assert compiled.wait()
        for _ in range(2):
            torch.testing.assert_close(compiled(X), loss(X))
        assert how(compiled) == ["inductor"]
        (entry,) = compiled._entries.all
        assert type(entry.run) is tl._C.Program
        assert any("kernel" in step or "cpp_fused" in step for step in entry.run.steps)

        again = tl.compile(loss, wait=False)
        torch.testing.assert_close(again(X), loss(X))
        assert how(again) == ["inductor"]


def test_control_flow_and_gradients_are_compiled_elsewhere(not_here):
    number = new_number()

    def f(w, x):
        def step(carry, row):
            carry = (carry @ w).tanh() * number + row
            return carry, carry.sum()

        return tl.scan(step, x[0], x)[1].sum()

    w, x = torch.randn(4, 4), torch.randn(6, 4)
    expected = tl.grad(f)(w, x)
    compiled = tl.compile(f, wait=False)
    for _ in range(3):
        given = w.clone().requires_grad_()
        (found,) = torch.autograd.grad(compiled(given, x), given)
        torch.testing.assert_close(found, expected)
        assert compiled.wait()
    assert how(compiled) == ["inductor"]


def test_an_operator_of_this_process_is_compiled_in_it():
    @torch.library.custom_op("background::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @doubled.register_fake
    def _(x):
        return torch.empty_like(x)

    compiled = tl.compile(lambda x: doubled(x).sin(), wait=False)
    torch.testing.assert_close(compiled(X), (2 * X).sin())
    assert compiled.wait()
    torch.testing.assert_close(compiled(X), (2 * X).sin())
    assert how(compiled) == ["inductor"]


def test_settings_apply_in_the_other_process(not_here):
    inductor.warn_no_compiler.cache_clear()
    compiled = tl.compile(scaled(new_number()), wait=False)
    with torch._inductor.config.patch({"cpp.cxx": ("/nowhere/to/be/found",)}):
        compiled(X)
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        compiled.wait()
    assert how(compiled) == ["replay (no C++ compiler)"]


@pytest.mark.full  # processes that compile
def test_a_killed_process_is_replaced(not_here):
    number = new_number()
    compiled = tl.compile(scaled(number), wait=False)
    compiled(X)
    os.kill(process_id(), signal.SIGKILL)
    assert compiled.wait()
    torch.testing.assert_close(compiled(X), scaled(number)(X))
    assert how(compiled) == ["inductor"]


@pytest.mark.full  # several processes, 12 s
def test_a_graph_that_ends_processes_is_replayed(not_here, monkeypatch):
    monkeypatch.setattr(background.WorkerProcess, "ask", ask_dying)
    compiled = tl.compile(scaled(new_number()), wait=False)
    compiled(X)
    with pytest.warns(UserWarning, match="did not compile .* process ended with signal 9"):
        compiled.wait()
    assert how(compiled) == ["replay (the compiling process ended with signal 9)"]


def ask_dying(self, key, encoded):
    os.kill(self.pid, signal.SIGKILL)
    raise background.WorkerDiedError(self._ending())


def test_processes_are_out_of_reach_of_ctrl_c():
    tl.compile(scaled(new_number()), wait=False)(X)
    assert os.getsid(process_id()) != os.getsid(0)


def process_id():
    end = time.monotonic() + 60
    while not background.process_ids():
        time.sleep(0.01)
        assert time.monotonic() < end
    return background.process_ids()[0]


def test_without_processes_a_thread_compiles(monkeypatch):
    def none():
        raise OSError("too many processes")

    monkeypatch.setattr(background, "_remote", background._Threads("test", 1, background._Remote))
    monkeypatch.setattr(background, "WorkerProcess", none)
    compiled = tl.compile(lambda x: x.sin() + 1, wait=False, options={"cpp.min_chunk_size": 4097})
    compiled(X)
    assert compiled.wait()
    torch.testing.assert_close(compiled(X), X.sin() + 1)
    assert how(compiled) == ["inductor"]


@pytest.mark.full
@pytest.mark.parametrize("damage", ["cut", "gone library"])
def test_a_damaged_cache_is_compiled_again(not_here, monkeypatch, damage):
    number = new_number()
    stored = []
    load = code_cache.load
    monkeypatch.setattr(
        code_cache, "load", lambda folder, key: (stored.append((folder, key)), load(folder, key))[1]
    )
    compiled = tl.compile(scaled(number), wait=False)
    compiled(X)
    assert compiled.wait()
    path = code_cache._path(*stored[0])
    if damage == "cut":
        with open(path, "r+b") as file:
            file.truncate(20)
    else:
        program = code_cache.read_description(path)
        steps = [
            step._replace(arguments=(Kernel("/nowhere/gone.so", "kernel_0"), *step.arguments[1:]))
            if step.method == "call_kernel"
            else step
            for step in program.steps
        ]
        assert steps != program.steps
        code_cache.store(*stored[0], program._replace(steps=steps))
    again = tl.compile(scaled(number), wait=False)
    again(X)
    assert how(again) == ["replay, until compiled"]
    assert again.wait()
    torch.testing.assert_close(again(X), scaled(number)(X))
    assert how(again) == ["inductor"]


PROGRAM = """
import os, random, sys, time, torch, torchlayers as tl
from torchlayers.compiler.runtime import background

number = random.random()
f, x = tl.compile(lambda x: (x.sin() * number).cumsum(0), wait=False), torch.ones(3)
torch.testing.assert_close(f(x), (x.sin() * number).cumsum(0))
while not background.process_ids():
    time.sleep(0.01)
print(*background.process_ids(), flush=True)
if sys.argv[1] == "error":
    raise ValueError("on purpose")
if sys.argv[1] == "stays":
    time.sleep(600)
"""


@pytest.mark.full
@pytest.mark.parametrize("ending", ["end", "error", "stays"])
def test_processes_end_with_the_program(ending):
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pid = int(program.stdout.readline())
    if ending == "stays":
        program.kill()
    _, told = program.communicate(timeout=60)
    assert program.returncode == {"end": 0, "error": 1, "stays": -signal.SIGKILL}[ending], told
    assert ("on purpose" in told) == (ending == "error")
    end = time.monotonic() + 60
    while is_running(pid):
        time.sleep(0.01)
        assert time.monotonic() < end


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = f"/proc/{pid}/stat"  # a process whose parent is gone may remain as a zombie
    if not os.path.exists(state):
        return os.path.exists("/proc/self") is False
    with open(state) as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.full
def test_a_program_can_end_while_a_thread_of_it_compiles():
    program = """
    import threading, time, torch, torchlayers as tl
    from torchlayers.compiler.inductor import compile as inductor
    started = threading.Event()
    def forever(*_):
        started.set()
        while True:
            time.sleep(0.01)
    inductor.compile_graph = forever
    compiled = tl.compile(lambda x: x.sin(), dynamic=True, wait=False)
    compiled(torch.ones(3)), compiled(torch.ones(4))
    started.wait()
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_an_unusable_cache_directory_is_reported_without_a_process(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file"))
    cache_directory._warn.cache_clear()
    compiled = tl.compile(scaled(new_number()), wait=False)
    with pytest.warns(UserWarning, match="cache directory .* can't be used"):
        torch.testing.assert_close(compiled(X).shape, X.shape)
    assert how(compiled) == ["replay (no cache directory)"]


def test_what_is_printed_there_is_not_a_reply(not_here):
    """Options reach the other process: this one makes Inductor log what it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = tl.compile(scaled(new_number()), wait=False, options={"debug": True})
        compiled(X)
        assert compiled.wait()
    assert how(compiled) == ["inductor"]
