"""Forward mode: jvp, and what is made of it, beside torch.func and torch's forward AD.

``python -m benchmarks.forward_mode`` prints the section and writes it into
docs/benchmarks.md; with ``--quick`` it is rough, and printed only.
"""

import statistics

from benchmarks import machine, page
from benchmarks.chains import FUNC, OURS
from benchmarks.comparisons import (
    FORWARD_AD,
    PLAIN,
    Comparison,
    of_chain,
    of_memory,
    of_networks,
    of_operators,
)
from benchmarks.peak import peak_bytes
from benchmarks.timing import Effort, Timing

SURVEY_MEAN, SURVEY_SLOWEST, MEMORY = 0.20, 1.00, 1.00  # bars
KIBI = 2**10
WITH_ZERO_TENSORS = ("x * w", "x + 0.5", "linear")

Timings = dict[str, Timing]


def measure(quick: bool) -> str:
    """All tables of the section, with the machine under them."""
    long, short = Effort(101, 0.003), Effort(51, 0.002)
    if quick:
        long, short = Effort(9, 0.001), Effort(5, 0.001)
    comparisons, operators = of_chain() + of_networks(), of_operators()
    lines: list[list[str]] = []
    survey: dict[str, Timings] = {}
    with page.progress(len(comparisons) + len(operators)) as advance:
        for comparison in comparisons:
            lines += _lines(comparison, comparison.measure(long))
            advance()
        for operator in operators:
            survey[operator.what] = operator.measure(short)
            advance()
    header = ["what", "over", "that, µs", f"{OURS}, µs", "ratio", "bar", f"{FUNC}'s ratio"]
    tables = [
        page.table(header, lines + _survey_lines(survey)),
        _memory_table(),
        _zero_tensors_table(survey),
        _survey_table(survey),
    ]
    return "\n\n".join([*tables, f"{machine.describe()}."])


def _lines(comparison: Comparison, timings: Timings) -> list[list[str]]:
    """One for each bar."""
    return [
        [
            comparison.what,
            over,
            _time(timings, over),
            _time(timings, OURS),
            _against(_ratio(timings, OURS, over), bar),
            f"{bar:.2f}",
            "" if over == FUNC else f"{_ratio(timings, FUNC, over):.2f}",
        ]
        for over, bar in comparison.bars.items()
    ]


def _survey_lines(survey: dict[str, Timings]) -> list[list[str]]:
    ratios = _survey_ratios(survey)
    slowest, worst = max(ratios.items(), key=lambda item: item[1])
    mean = statistics.geometric_mean(ratios.values())
    return [
        [what, FUNC, "", "", _against(ratio, bar), f"{bar:.2f}", ""]
        for what, ratio, bar in (
            ("jvp, the survey's geometric mean", mean, SURVEY_MEAN),
            (f"jvp, the survey's slowest ({slowest})", worst, SURVEY_SLOWEST),
        )
    ]


def _memory_table() -> str:
    rows = []
    for network, works in of_memory().items():
        theirs, ours = peak_bytes(works[FUNC]), peak_bytes(works[OURS])
        peaks = [f"{peak / KIBI:,.0f}" for peak in (theirs, ours)]
        rows.append([f"jvp, {network}", *peaks, _against(ours / theirs, MEMORY), f"{MEMORY:.2f}"])
    header = ["peak memory", f"{FUNC}, KiB", f"{OURS}, KiB", "ratio", "bar"]
    return page.table(header, rows)


def _zero_tensors_table(survey: dict[str, Timings]) -> str:
    jvps = (FORWARD_AD, FUNC, OURS)
    rows = [
        [name, _time(survey[name], PLAIN)]
        + [f"{_ratio(survey[name], jvp, PLAIN):.1f}" for jvp in jvps]
        for name in WITH_ZERO_TENSORS
    ]
    header = ["jvp, one operand constant", "plain, µs", *(f"{jvp} / plain" for jvp in jvps)]
    return page.table(header, rows)


def _survey_table(survey: dict[str, Timings]) -> str:
    """The slowest beside torch.func first; before them, what torch.func refuses."""
    ratios = _survey_ratios(survey)
    names = sorted(survey, key=lambda name: -ratios.get(name, float("inf")))
    rows = [
        [
            name,
            *(_time(survey[name], peer) for peer in (PLAIN, FORWARD_AD, FUNC, OURS)),
            f"{ratios[name]:.2f}" if name in ratios else "",
        ]
        for name in names
    ]
    peers = ("plain", FORWARD_AD, FUNC, OURS)
    return page.table(
        ["jvp of", *(f"{peer}, µs" for peer in peers), f"{OURS} / {FUNC}"],
        rows,
    )


def _survey_ratios(survey: dict[str, Timings]) -> dict[str, float]:
    """Ours to torch.func, for the operators that both do."""
    return {
        name: _ratio(timings, OURS, FUNC)
        for name, timings in survey.items()
        if {OURS, FUNC} <= timings.keys()
    }


def _ratio(timings: Timings, peer: str, over: str) -> float:
    return timings[peer].median / timings[over].median


def _time(timings: Timings, peer: str) -> str:
    if peer not in timings:
        return "refused"
    return f"{timings[peer].median:.2f} ({timings[peer].spread:.2f})"


def _against(ratio: float, bar: float) -> str:
    return f"{ratio:.2f}" if ratio <= bar else f"{ratio:.2f}, missed"


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "benchmarks.md", "forward mode")
