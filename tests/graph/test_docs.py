"""The examples in docs/graph-fx.md and in the docstrings give what they say."""

import doctest
from pathlib import Path

import pytest

import torchlayers.graph
from torchlayers.graph import gradient

PAGE = Path(__file__).parents[2] / "docs" / "graph-fx.md"


def test_the_page():
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert attempted > 5
    assert failed == 0


@pytest.mark.parametrize("module", [torchlayers.graph, gradient])
def test_the_docstrings(module):
    failed, attempted = doctest.testmod(module)
    assert attempted > 3
    assert failed == 0
