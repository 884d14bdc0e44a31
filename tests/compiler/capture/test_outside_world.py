"""Functions that print, open files or ask for input run uncompiled."""

import builtins

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


def test_graphs_that_are_made_for_the_user_print_as_they_are_made(capsys):
    tl.make_graph(printing)(X)
    assert capsys.readouterr().out == "called\n"
    assert not hasattr(builtins.print, "__wrapped__")
