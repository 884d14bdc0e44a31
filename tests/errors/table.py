"""A misuse, and the tests that run for each table of misuses."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.support.calls import Call, ambient, run


@dataclasses.dataclass(frozen=True)
class Misuse:
    name: str
    call: Call
    error: type[Exception]
    message: str
    # torch.func's behaviour where it does not raise the same built-in exception, and why we do.
    torch_func: str = ""


# The location in the user's code, as C++ appends it to a message: in one of these files.
_FILES = "|".join(re.escape(path.name) for path in Path(__file__).parent.glob("*.py"))
LOCATION = re.compile(rf" In ({_FILES}):\d+, `.+`\.$")


def error_of(call, library):
    """The error that the call raises; asserts that it leaves no state behind."""
    before = ambient()
    with pytest.raises(Exception) as caught:
        run(call, library)
    assert ambient() == before
    return caught.value


def built_in(error):
    return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
class MisuseTests:
    """The tests of a table; a subclass sets `table`."""

    table: list[Misuse]

    def pytest_generate_tests(self, metafunc):
        metafunc.parametrize("case", self.table, ids=[case.name for case in self.table])

    def test_misuse_is_refused_in_these_words(self, case):
        error = error_of(case.call, tl)
        assert type(error) is case.error
        if "torchlayers: " in case.message:
            assert LOCATION.sub("", str(error)) == case.message
        else:
            assert str(error).startswith(case.message)

    def test_programs_that_catch_torch_funcs_error_catch_ours(self, case):
        try:
            run(case.call, torch.func)
        except Exception as error:
            assert issubclass(case.error, built_in(error)) != bool(case.torch_func)
        else:
            assert case.torch_func

    def test_misuse_inside_another_transform_leaves_it_as_it_was(self, case):
        seen = []

        def f(x):
            error_of(case.call, tl)
            seen.append([layer.kind for layer in tl.current_stack()])
            return (x**3).sum()

        assert tl.grad(f)(torch.tensor(1.0)).item() == 3.0
        assert seen == [["grad"]]
