"""Writes the table of docs/operators.md: ``python -m tests.rules.operators_page``."""

import contextlib
from pathlib import Path
from typing import Any

from torchlayers import _C
from torchlayers.core import operator_schema
from torchlayers.transforms import decompositions
from torchlayers.transforms.jet import rules as jet_rules  # noqa: F401
from torchlayers.transforms.jet.layer import Jet
from torchlayers.transforms.jet.rules.decomposed import decomposed as jet_decomposed
from torchlayers.transforms.laplacian import general
from torchlayers.transforms.laplacian import rules as laplacian_rules  # noqa: F401
from torchlayers.transforms.laplacian.layer import ForwardLaplacian
from torchlayers.transforms.layers.rule_table import facts
from torchlayers.transforms.sparse.detection import rules as sparse_rules  # noqa: F401
from torchlayers.transforms.sparse.detection.layer import Sparsity

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
BEGIN, END = "<!-- operators: begin -->\n", "<!-- operators: end -->"
HEAD = "| operator | form | jvp | grad | vmap | jet | laplacian | sparsity |"
LINES = "| --- | --- | --- | --- | --- | --- | --- | --- |"
ALONG = {
    "reduces": "reduces lines",
    "scans": "scans lines",
    "mixes": "mixes lines",
    "matrices": "mixes matrices",
    "windows": "reduces windows",
    "transposed windows": "spreads into windows",
}


def operators() -> dict[str, Any]:
    """The operators of ATen about which csrc/rules states something, and that this torch has."""
    found = {}
    for name in sorted(_C.stated_operators()):
        namespace, _, base = name.partition("::")
        if namespace != "aten":
            continue
        with contextlib.suppress(AttributeError, RuntimeError):
            base, _, overload = base.partition(".")
            op = operator_schema.overload(f"aten::{base}", overload)
            found[name.removeprefix("aten::")] = op
    return found


def form(op: Any) -> str:
    known = facts(op)
    names = [argument.name for argument in operator_schema.schema_of(op).arguments]

    def of(places: Any) -> str:
        return ", ".join(names[place] for place in places)

    words = []
    if known["is_constant"]:
        words.append("constant")
    if known["is_step"]:
        words.append("step")
    if known["elementwise_in"]:
        words.append(f"elementwise in {of(known['elementwise_in'])}")
    if known["slope"] is not None:
        words.append(f"y' = {polynomial(*known['slope'])}")
    if known["linear_in"]:
        kind = "jointly linear" if known["is_linear_together"] else "linear"
        words.append(f"{kind} in {of(known['linear_in'])}")
    if known["is_linear"]:
        words.append("linear")
    elif known["is_piecewise_linear"]:
        words.append("piecewise linear")
    if known["gathers"]:
        words.append("moves elements")
    if known["scatters"]:
        words.append("adds elements up")
    if known["selects"]:
        words.append("selects")
    if known["along"]:
        words.append(ALONG[known["along"]])
    if known["contracts"] is not None:
        left, right, dims = known["contracts"]
        kind = "contracts" if known["is_product"] else "pairs"
        words.append(f"{kind} {of((left, right))}: {dims}")
    return "; ".join(words) or "written out"


def polynomial(a: float, b: float, c: float) -> str:
    terms = [(a, ""), (b, "y"), (c, "y²")]
    texts = [f"{factor:.3g}{power}" for factor, power in terms if factor]
    text = " + ".join(texts).replace("+ -", "- ")
    return text.replace("1y", "y")


def by_layer(layer: Any, op: Any) -> str:
    """Where a layer in Python has its rule for the operator from."""
    rule = layer._rules.find(op)
    is_composite = operator_schema.is_composite(op)
    if rule is None or rule in (jet_decomposed, general.decomposed):
        return "decomposed" if is_composite or rule is not None else "by its vjp"
    tags = {key for key, each in layer._rules._rules.items() if each is rule}
    by_name = {op, op.overloadpacket} & tags
    if by_name:
        return "by hand"
    if "any" in tags:
        return "by jvp" if _C.has_jvp_rule(*names_of(op)) else "by jvp or decomposed"
    return "derived"


def names_of(op: Any) -> tuple[str, str]:
    schema = operator_schema.schema_of(op)
    return schema.name, schema.overload_name


def row(name: str, op: Any) -> str:
    names = names_of(op)
    is_composite = operator_schema.is_composite(op)
    without = "decomposed" if is_composite else "torch's"
    if not is_composite and decompositions.find(*names) is not None:
        without = "torch's or decomposed"
    cells = [
        f"`{name}`",
        form(op).replace("|", "\\|"),
        "rule" if _C.has_jvp_rule(*names) else without,
        "rule" if _C.has_vjp_rule(*names) else without,
        "rule" if name in batched() else without.replace(" or decomposed", ""),
        *(by_layer(layer, op) for layer in (Jet, ForwardLaplacian, Sparsity)),
    ]
    return f"| {' | '.join(cells)} |"


def batched() -> set[str]:
    return {name.removeprefix("aten::") for name in _C.batching_rules()}


def rows() -> dict[str, str]:
    return {name: row(name, op) for name, op in operators().items()}


def parts() -> tuple[str, str, str]:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    written, _, after = rest.partition(END)
    return before, written, after


def written_rows() -> dict[str, str]:
    """The page's rows, by operator."""
    lines = parts()[1].splitlines()[2:]
    return {line.split("`")[1]: line for line in lines}


if __name__ == "__main__":
    before, _, after = parts()
    table = "\n".join([HEAD, LINES, *rows().values()])
    PAGE.write_text(f"{before}{BEGIN}{table}\n{END}{after}", "utf-8")
