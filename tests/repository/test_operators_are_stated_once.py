"""csrc/rules says what an operator is; few other files name one that all networks have."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    *(ROOT / "torchlayers").rglob("*.py"),
    *(path for ending in ("h", "cpp") for path in (ROOT / "csrc").rglob(f"*.{ending}")),
]
# How many files may name the operator. Beside its statement these are the same function of plain
# numbers, cells of recurrent networks, and Inductor's quotient.
LIMITS = {"tanh": 4, "sigmoid": 3, "softplus": 2, "gelu": 2, "silu": 1, "mish": 1, "erf": 3}


@pytest.mark.parametrize("name", LIMITS)
def test_few_files_name_an_operator(name):
    word = re.compile(rf"\b{name}\b")
    naming = [path for path in FILES if word.search(without_includes(path))]
    assert len(naming) <= LIMITS[name], [str(path.relative_to(ROOT)) for path in naming]


def without_includes(path):
    return re.sub(r"#include <.+>", "", path.read_text(encoding="utf-8"))
