"""``python -m tests.compiler.exported.page`` writes the table of docs/deploy.md."""

from pathlib import Path

from tests.compiler.exported import cells
from tests.compiler.exported.cells import DTYPES, SIZES, TARGETS
from tests.compiler.exported.transforms import NAMES

PAGE = Path(__file__).parents[3] / "docs" / "deploy.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"


def table_text() -> str:
    lines = [f"| | {' | '.join(TARGETS)} |", "|---" * (len(TARGETS) + 1) + "|"]
    for name in NAMES:
        lines.append(f"| {name} | {' | '.join(_cell(name, target) for target in TARGETS)} |")
    return "\n".join(lines) + "\n"


def _cell(name: str, target: str) -> str:
    cases = [
        cells.case_of(dtype, sizes)
        for sizes in SIZES
        for dtype in DTYPES
        if cells.has_case(name, sizes)
    ]
    why = {case: cells.refusal_of(name, target, case) for case in cases}
    refused = {case: refusal.why for case, refusal in why.items() if refusal}
    if len(refused) == len(cases):
        return refused[cases[0]]
    untried = [case for case in cases if case not in refused]
    untried = [case for case in untried if cells.is_untried(name, target, case)]
    words = ["works"] if len(refused) + len(untried) < len(cases) else []
    words += [f"not {case}: {reason}" for case, reason in refused.items()]
    words += [f"not tried: {_short(untried, cases)}"] if untried else []
    return "; ".join(words)


def _short(untried: list[str], cases: list[str]) -> str:
    """The cases, or only the dtype where no case of it was tried."""
    for dtype in DTYPES:
        of_dtype = [case for case in cases if case.startswith(cells.case_of(dtype, ""))]
        if untried == of_dtype:
            return cells.case_of(dtype, "").removesuffix(", ")
    return " and ".join(untried)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}{table_text()}{END}{after}")
