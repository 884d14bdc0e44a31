"""The examples in docs/graph.md and in the docstrings give what they say."""

import doctest
from pathlib import Path

import pytest

from torchlayers.graph import script

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

PAGE = Path(__file__).parents[2] / "docs" / "graph.md"


def test_the_page():
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert attempted > 15
    assert failed == 0


def test_the_docstrings():
    failed, attempted = doctest.testmod(script)
    assert attempted > 4
    assert failed == 0
