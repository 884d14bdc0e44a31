"""Operators and overloads that a torch lacks are placeholders; the others are torch's."""

import os
import subprocess
import sys

import pytest
import torch

from torchlayers.core.errors import TorchVersionError
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.operators import MissingOperator, aten, present
from torchlayers.core.torch_private import OpOverload


def test_a_missing_overload_is_a_placeholder():
    missing = aten.sin.no_such_overload
    assert isinstance(missing, MissingOperator)
    assert present([aten.sin.default, missing]) == [torch.ops.aten.sin.default]
    with pytest.raises(TorchVersionError, match=r"torch\.ops\.aten\.sin\.no_such"):
        missing(torch.ones(1))
    with pytest.raises(AttributeError):
        _ = aten.sin._no_such_attribute


def test_an_operator_is_equal_to_torchs():
    theirs = torch.ops.aten.sin
    assert aten.sin == theirs == aten.sin != aten.cos
    assert {theirs: 1}[aten.sin] == {aten.sin: 1}[theirs] == 1
    assert isinstance(aten.sin, type(theirs))
    assert aten.sin.default is theirs.default
    assert aten.sin.default.overloadpacket is theirs
    assert aten.sin(torch.zeros(1)) == 0


HIDDEN = ("torch.ops.aten.sin.default", "torch.ops.aten.sum.dim_IntList")
PROGRAM = """
import torch, torchlayers
from torchlayers.core.operators import aten
print(aten.sin.default, aten.sum.dim_IntList)
print(torchlayers.grad(lambda x: torchlayers.vmap(torch.exp)(x).sum())(torch.zeros(2)))
"""


@pytest.mark.sweep
def test_the_package_works_without_some_overloads():
    environment = {**os.environ, "TORCHLAYERS_WITHOUT": ",".join(HIDDEN)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.stdout.splitlines() == [
        " ".join(f"<missing {name}>" for name in HIDDEN),
        "tensor([1., 1.])",
    ], run.stderr


class _WithoutSchema(OpOverload):
    def __init__(self):
        pass


def test_an_overload_without_a_schema_is_refused_in_words():
    assert schema_of(torch.ops.aten.sin.default).name == "aten::sin"
    assert schema_of(torch.ops.higher_order.cond) is None
    with pytest.raises(TorchVersionError, match="_schema"):
        schema_of(_WithoutSchema())
