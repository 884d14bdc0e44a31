"""csrc/rules says what an operator is; few other files name one that all networks have."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    *(ROOT / "torchlayers").rglob("*.py"),
    *(path for ending in ("h", "cpp") for path in (ROOT / "csrc").rglob(f"*.{ending}")),
]
# How many files may name the operator. Beside its statement these are a list of typed kernels,
# cells of recurrent networks, losses and activations made of it, and Inductor's quotient.
LIMITS = {"tanh": 7, "sigmoid": 9, "softplus": 4, "gelu": 3, "silu": 4, "mish": 3, "erf": 4}


@pytest.mark.parametrize("name", LIMITS)
def test_few_files_name_an_operator(name):
    word = re.compile(rf"\b{name}\b")
    naming = [path for path in FILES if word.search(without_includes(path))]
    assert len(naming) <= LIMITS[name], [str(path.relative_to(ROOT)) for path in naming]


def without_includes(path):
    return re.sub(r"#include <.+>", "", path.read_text(encoding="utf-8"))
