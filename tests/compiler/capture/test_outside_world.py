"""Functions that print, log, open files and the like run uncompiled."""

import builtins
import contextlib
import io
import logging
import os
import pathlib
import socket
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import torchlayers as tl

X = torch.ones(2)


def printing(x):
    print("called")
    return 2 * x


def test_what_a_function_prints_is_printed_at_each_call(capsys):
    compiled = tl.compile(printing, backend="replay")
    with pytest.warns(UserWarning, match=r"printing prints, .* runs uncompiled.*debug\.print"):
        compiled(X)
    for _ in range(2):
        assert torch.equal(compiled(X), 2 * X)
    assert capsys.readouterr().out == "called\n" * 3
    assert compiled.report().as_it_is == "the function prints"


def test_a_branch_that_prints_does_not_stop_those_that_are_compiled(capsys):
    def f(x):
        if x.sum() < 0:
            print("negative")
        return x.sin()

    compiled = tl.compile(f, backend="replay")
    compiled(X)
    with pytest.warns(UserWarning, match="runs uncompiled where it reads new ones: it prints"):
        compiled(-X)
    for x in (X, -X, X):
        assert torch.equal(compiled(x), x.sin())
    assert capsys.readouterr().out == "negative\n" * 2
    assert compiled.report().signatures[0].calls == 5


def test_files_that_a_function_opens_are_opened_at_each_call(tmp_path):
    def f(x):
        with open(tmp_path / "log", "a") as file:
            file.write("x")
        return x + 1

    compiled = tl.compile(tl.grad(lambda x: f(x).sum()), backend="replay")
    with pytest.warns(UserWarning, match="opens a file"):
        compiled(X)
    compiled(X)
    assert (tmp_path / "log").read_text() == "xx"


def logs(x):
    logging.getLogger("program").warning("called")
    return x + 1


def writes_to_stderr(x):
    sys.stderr.write("called")
    return x + 1


def writes_a_file(x):
    pathlib.Path("log").write_text("x")
    return x + 1


def saves_an_array(x):
    np.save("log.npy", np.ones(3))
    return x + 1


def saves_a_tensor(x):
    torch.save(x, "x.pt")
    return x + 1


def makes_a_folder(x):
    os.makedirs("folder/inside", exist_ok=True)
    return x + 1


def starts_a_process(x):
    subprocess.run(["true"], check=True)
    return x + 1


def asks_another_machine(x):
    ONE.sendall(b"x")
    return x + 1


def catches_everything(x):
    try:
        ONE.sendall(b"x")
    except Exception:
        return x
    return x + 1


@pytest.fixture(scope="module", autouse=True)
def machines():
    global ONE, OTHER
    ONE, OTHER = socket.socketpair()
    yield
    ONE.close()
    OTHER.close()


DOES = {
    logs: "logs",
    writes_to_stderr: "prints",
    writes_a_file: "opens a file",
    saves_an_array: "opens a file",
    saves_a_tensor: "saves a file",
    makes_a_folder: "changes files",
    starts_a_process: "starts a process",
    asks_another_machine: "uses a socket",
    catches_everything: "uses a socket",
}


@pytest.mark.parametrize("f", DOES)
def test_what_a_function_does_outside_is_done_at_each_call(f, monkeypatch, tmp_path):
    before = {name: vars(socket.socket).get(name) for name in ("sendall", "family")}
    monkeypatch.chdir(tmp_path)
    compiled = tl.compile(f, backend="replay")
    with pytest.warns(UserWarning, match=f"{f.__name__} {DOES[f]}, .* runs uncompiled"):
        assert torch.equal(compiled(X), X + 1)
    assert torch.equal(compiled(2 * X), 2 * X + 1)
    assert compiled.report().as_it_is == f"the function {DOES[f]}"
    assert {name: vars(socket.socket).get(name) for name in before} == before
    assert "write" not in vars(sys.stderr)
    if f is saves_a_tensor:
        assert torch.equal(torch.load("x.pt"), 2 * X)
    if DOES[f] == "uses a socket":
        assert OTHER.recv(100) == b"xx"


def test_both_streams_may_be_one_and_show_warnings():
    def f(x):
        warnings.warn("only once", stacklevel=1)
        return x + 1

    # As Python's own function does, in whose place pytest has put another.
    show = "def show(message, *rest): sys.stderr.write(f'{message}, ')"
    names = {"sys": sys}
    exec(compile(show, warnings.__file__, "exec"), names)
    compiled, stream = tl.compile(f, backend="replay"), io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = names["show"]
            assert torch.equal(compiled(X), X + 1)
        writes_to_stderr(X)
    assert stream.getvalue() == "only once, called"
    assert vars(stream) == {} and compiled.report().as_it_is == ""


@pytest.mark.parametrize("raises", [False, True])
def test_a_file_that_is_open_is_written_to_once_per_call(raises, tmp_path):
    def f(x):
        file.write("called")
        if raises:
            raise ZeroDivisionError
        return x + 1

    compiled = tl.compile(f, backend="replay")
    with open(tmp_path / "log", "w") as file:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError) if raises else warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*changes file at each call")
                compiled(X)
    assert (tmp_path / "log").read_text() == "called" * 3


def test_a_function_that_warns_is_compiled():
    def f(x):
        warnings.warn("only once", stacklevel=1)
        return x + 1

    compiled = tl.compile(f, backend="replay")
    with pytest.warns(UserWarning, match="only once"):
        assert torch.equal(compiled(X), X + 1)
    assert compiled.report().as_it_is == ""


def test_a_message_below_the_level_of_its_logger_does_not_matter():
    def f(x):
        logging.getLogger("program").debug("called")
        return x + 1

    compiled = tl.compile(f, backend="replay")
    assert torch.equal(compiled(X), X + 1)
    assert compiled.report().as_it_is == ""


def test_graphs_that_are_made_for_the_user_print_as_they_are_made(capsys):
    tl.make_graph(printing)(X)
    assert capsys.readouterr().out == "called\n"
    assert not hasattr(builtins.print, "__wrapped__")
