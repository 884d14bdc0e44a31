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
    cases = {
        (dtype, sizes): cells.refusal_of(name, target, cells.case_of(dtype, sizes))
        for dtype in DTYPES
        for sizes in SIZES
        if cells.has_case(name, sizes)
    }
    refused = [f"not {cells.case_of(*case)}: {why.why}" for case, why in cases.items() if why]
    if len(refused) == len(cases):
        return refused[0].partition(": ")[2]
    return "; ".join(["works", *refused])


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}{table_text()}{END}{after}")
