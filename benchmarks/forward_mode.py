"""Forward mode: jvp and transforms built from it, compared with torch.func and torch's forward AD.

``python -m benchmarks.forward_mode`` prints the tables and writes them into
docs/benchmarks.md and docs/forward-mode.md; with ``--quick`` they are rough, and printed only.
"""

from benchmarks import machine, page
from benchmarks.chains import FUNC, OURS
from benchmarks.comparisons import (
    HEADER,
    judged,
    measured,
    of_chain,
    of_memory,
    of_networks,
    of_nothing,
    of_operators,
)
from benchmarks.peak import peak_bytes
from benchmarks.survey import Survey
from benchmarks.timing import Effort

MEMORY_BAR = 1.00
KIBI = 2**10


def measure(quick: bool) -> dict[str, str]:
    """The tables for each page, each followed by a line about the machine."""
    longest = Effort(101, 0.003)
    long, short = (Effort(9, 0.001), Effort(5, 0.001)) if quick else (longest, Effort(51, 0.002))
    comparisons, operators = of_chain() + of_networks(), of_operators()
    lines, timings = measured(comparisons, long, operators, short)
    nothing = of_nothing().measure(longest)  # subtracted from all the others
    survey = Survey(timings, nothing)
    tables = [page.table(HEADER, lines + survey.lines()), _memory(), survey.table()]
    where = f"{machine.describe()}."
    return {
        "benchmarks.md": "\n\n".join([*tables, where]),
        "forward-mode.md": f"{survey.zero_tensors()}\n\n{where}",
    }


def _memory() -> str:
    rows = []
    for network, works in of_memory().items():
        theirs, ours = peak_bytes(works[FUNC]), peak_bytes(works[OURS])
        peaks = [f"{peak / KIBI:,.0f}" for peak in (theirs, ours)]
        rows.append([f"jvp, {network}", *peaks, *judged(ours / theirs, MEMORY_BAR)])
    header = ["peak memory", f"{FUNC}, KiB", f"{OURS}, KiB", "ratio", "bar"]
    return page.table(header, rows)


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "forward mode")
