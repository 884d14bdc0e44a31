"""The tables of torch's operators in C++ and Python, checked against the operators of this torch.

The tables use names, and an entry for a name that torch lacks is never looked up: if torch renamed
an operator, its rule would be lost and nothing would fail.
"""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed._functional_collectives  # defines operators of the tables

from tests.support.expected_failures import ABSENT
from torchlayers import _C
from torchlayers.transforms import decompositions

CSRC = Path(__file__).parents[2] / "csrc"


def typed_kernels():
    """The operators that csrc/dispatch/unboxed/ names: add_along<...>({"flip", ...});"""
    text = "\n".join(path.read_text() for path in CSRC.rglob("unboxed/*.cpp"))
    lists = re.findall(r"\badd_along<[^;]*?>\(\s*\{([^}]*)\}", text)
    by_name = re.findall(r'\bregister_kernel<\w+>\("([\w.]+)"', text)
    listed = [name for each in lists for name in re.findall(r'"([\w.]+)"', each)]
    return [f"aten::{name}" for name in [*listed, *by_name]]


TABLES = {
    "tangents": _C.jvp_rules(),
    "cotangents": _C.vjp_rules(),
    "batching": _C.batching_rules(),
    "typed kernels": typed_kernels(),
    "typed kernels of any table": _C.typed_operators(),
    "graphs": _C.operators_with_rules(),
    "decompositions": [*decompositions._OURS],
}

tables = pytest.mark.parametrize("table", TABLES)


def operators_of_torch():
    """Names with an overload, as aten::mul.Tensor, and without. TorchScript has operators of its
    own."""
    script = torch._C._jit_get_all_schemas()
    names = {f"{each.name}.{each.overload_name}".removesuffix(".") for each in script}
    names |= {*torch._C._dispatch_get_all_op_names()}
    return names | {name.split(".")[0] for name in names}


def missing(operators):
    return {*operators} - operators_of_torch() - ABSENT.keys()


@tables
def test_every_operator_of_a_table_exists_in_torch(table):
    assert not missing(TABLES[table])


@tables
def test_an_operator_stands_in_a_table_once(table):
    assert len(TABLES[table]) == len({*TABLES[table]})


def test_every_typed_kernel_that_is_written_is_registered():
    """Pointwise ones are found by their signatures."""
    others = {*_C.typed_operators()} - {*TABLES["typed kernels"]}
    assert {*TABLES["typed kernels"]} - ABSENT.keys() <= {*_C.typed_operators()}
    assert all(torch.Tag.pointwise in _operator(name).tags for name in others)


def _operator(name):
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def test_every_operator_named_in_a_source_exists_in_torch():
    """Besides those in the tables, those that sources look up by name."""
    named = {
        name
        for path in CSRC.rglob("*.*")
        if path.suffix in (".cpp", ".h")
        for name in re.findall(r'"((?:aten|prim|prims)::[\w.]+)"', path.read_text())
    }
    assert len(named) > 90
    assert not missing(named)


def test_missing_operators_are_named():
    assert missing(["aten::sin", "aten::mul.Tensor", "aten::sine"]) == {"aten::sine"}
