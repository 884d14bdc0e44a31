"""The kinds of arguments and results that operators can have, with test operators of each kind.

A kind is written as in a schema. docs/custom-operators.md says what a layer does with each.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DOCUMENT = Path(__file__).parents[2] / "docs" / "custom-operators.md"

# Kinds that are passed on unchanged, with a value of each.
DATA: dict[str, Any] = {
    "int": 3,
    "SymInt": 3,
    "int?": 3,
    "int[]": [1, 2],
    "int[]?": [1, 2],
    "int[][]": [[1], [2, 3]],
    "SymInt[]": [1, 2],
    "float": 1.5,
    "float?": 1.5,
    "float[]": [1.5, 2.5],
    "float[]?": [1.5],
    "bool": True,
    "bool?": False,
    "bool[]": [True, False],
    "complex": 1 + 2j,
    "Scalar": 2.5,
    "Scalar?": 2,
    "Scalar[]": [1, 2.5],
    "Scalar?[]": [1, None],
    "str": "twice",
    "str?": "twice",
    "str[]": ["once", "twice"],
    "str[][]": [["once"], ["twice"]],
    "ScalarType": torch.float64,
    "ScalarType?": torch.float64,
    "ScalarType?[]": [7, None],  # kernels in Python get a list's dtypes as numbers
    "Layout": torch.strided,
    "Layout?": torch.strided,
    "MemoryFormat": torch.contiguous_format,
    "MemoryFormat?": torch.channels_last,
    "Device": torch.device("cpu"),
    "Device?": torch.device("cpu"),
    "Generator": torch.Generator(),
    "Generator?": torch.Generator(),
    "Storage": torch.ones(2).untyped_storage(),
    "class": torch.ops.profiler._record_function_enter_new("kinds", None),
}
CLASS = "__torch__.torch.classes.profiler._RecordFunction"

# Kinds that hold tensors where the dispatcher looks for them; each makes a value from x.
SEEN = {
    "Tensor": lambda x: x,
    "Tensor?": lambda x: x,
    "Tensor[]": lambda x: [x, 2 * x],
    "Tensor?[]": lambda x: [x, None, 2 * x],
}

# Kinds that hold tensors where it does not look: NOTE [Hidden tensors].
HIDDEN = {
    "Tensor[]?": lambda x: [x, 2 * x],
    "Tensor?[]?": lambda x: [x, None],
    "Tensor[][]": lambda x: [[x], [2 * x, x]],
    "Dict(str, Tensor)": lambda x: {"a": x, "b": 2 * x},
    "Dict(str, Tensor)?": lambda x: {"a": x},
    "Dict(int, Tensor[])": lambda x: {0: [x, x], 1: []},
    "Dict(Tensor, Tensor)": lambda x: {x: 2 * x},
    "(Tensor, Tensor)": lambda x: (x, 2 * x),
    "Any": lambda x: [{"a": (x, 1)}],
}

# Kinds of arguments that are written to.
WRITTEN = {
    "Tensor(a!)": lambda x: x,
    "Tensor(a!)?": lambda x: x,
    "Tensor(a!)[]": lambda x: [x],
    "Dict(str, Tensor)(a!)": lambda x: {"a": x},
}


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a value, in order, including those among a dict's keys."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [found for item in value.items() for found in tensors_in(item)]
    if isinstance(value, list | tuple):
        return [found for member in value for found in tensors_in(member)]
    return []


def kind_of(argument: torch._C.Argument) -> str:
    """The kind of an argument or result, as written in a schema."""
    kind = _written(str(argument.real_type))
    alias = argument.alias_info
    if alias is None:
        return kind
    mark = "(a!)" if alias.is_write else "(a)"
    return kind.replace("Tensor", "Tensor" + mark, 1) if "Dict" not in kind else kind + mark


def _written(name: str) -> str:
    for outer, suffix in (("Optional", "?"), ("List", "[]")):
        if match := re.fullmatch(rf"{outer}\[(.*)\]", name):
            return _written(match[1]) + suffix
    if match := re.fullmatch(r"Dict\[(.*?), (.*)\]", name):
        return f"Dict({match[1]}, {_written(match[2])})"
    if name.startswith("__torch__."):
        return "class"
    return {"number": "Scalar"}.get(name, name)


def kinds_of_torch() -> dict[str, str]:
    """Every kind that occurs in an operator registered with torch's dispatcher, with one such
    operator."""
    names = set(torch._C._dispatch_get_all_op_names())
    kinds = {}
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        if name in names and not name.startswith("torchlayers_"):
            for argument in [*schema.arguments, *schema.returns]:
                kinds.setdefault(kind_of(argument), name)
    return kinds


def documented_kinds(heading: str) -> set[str]:
    """The kinds in the first column of the table below a heading."""
    section = DOCUMENT.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return {kind for row in rows for kind in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
