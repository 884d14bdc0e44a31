"""The examples in docs/graph-fx.md and in the docstrings give what they say."""

import doctest
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers.graph
from torchlayers.graph import differentiate, gradient

PAGE = Path(__file__).parents[2] / "docs" / "graph-fx.md"


def test_the_page():
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert attempted > 5
    assert failed == 0


def test_the_picture():
    inputs = torch.ones(2, 3), torch.ones(3, 4)
    drawn = differentiate(make_fx(lambda x, w: (x @ w).tanh().sum(0))(*inputs)).to_svg()
    assert PAGE.with_suffix(".svg").read_text() == drawn


@pytest.mark.parametrize("module", [torchlayers.graph, gradient])
def test_the_docstrings(module):
    failed, attempted = doctest.testmod(module)
    assert attempted > 3
    assert failed == 0
