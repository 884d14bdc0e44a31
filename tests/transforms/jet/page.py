"""Writes the table of rules in docs/taylor-mode.md: ``python -m tests.transforms.jet.page``."""

import collections
import sys
from pathlib import Path

import torch

from tests.support.rule_tables import TANGENTS
from torchlayers.transforms.jet import rules as rules
from torchlayers.transforms.jet.layer import Jet

PAGE = Path(__file__).parents[3] / "docs" / "taylor-mode.md"
BEGIN, END = "<!-- rules: begin -->\n", "<!-- rules: end -->"
TAGS = {
    "any": "all others, by nested jvps",
    "constant": "comparisons and others without a derivative, or whose derivative is zero",
    "linear": "all that are known to be linear or bilinear: views, indexing, products of matrices, "
    "resampling, Fourier transforms, and others",
}


def listed(tag: str) -> str:
    """The operators of csrc/rules that have the rule of a tag."""
    rule = Jet._rules._rules[tag]
    names = []
    for name in TANGENTS.operators:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if Jet._rules.find(op) is rule:
            names.append(f"`{packet}`")
    return ", ".join(sorted(set(names)))


def described(key: object) -> str:
    if isinstance(key, str):
        return TAGS.get(key) or listed(key)
    name = str(key).removeprefix("aten.").removesuffix(".default")
    return f"`{name}`"


def table() -> str:
    by_family = collections.defaultdict(list)
    for key in Jet._rules.registered():
        module = sys.modules[Jet._rules._rules[key].__module__]
        family = "Others" if key == "any" else module.__doc__.partition("\n")[0]
        by_family[family.rstrip(".")].append(described(key))
    rows = [f"| {family} | {', '.join(sorted(names))} |" for family, names in by_family.items()]
    return "\n".join(["| rules | operators |", "| --- | --- |", *sorted(rows)]) + "\n"


def parts() -> tuple[str, str, str]:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    written, _, after = rest.partition(END)
    return before, written, after


if __name__ == "__main__":
    before, _, after = parts()
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", "utf-8")
