"""The measurements of the survey's operators, as tables."""

import statistics
from dataclasses import dataclass

from benchmarks import page
from benchmarks.chains import FUNC, OURS
from benchmarks.comparisons import FORWARD_AD, PLAIN, SLOWEST_BAR, judged
from benchmarks.timing import Timing

MEAN_BAR = 0.20
JVPS = (FORWARD_AD, FUNC, OURS)
WITH_ZERO_TENSORS = ("x * w", "x + 0.5", "linear")


@dataclass(frozen=True)
class Survey:
    """Microseconds per operator, by operator and peer; and those of an empty call."""

    timings: dict[str, dict[str, Timing]]
    nothing: dict[str, Timing]

    def ratios(self, with_call: bool) -> dict[str, float]:
        """torchlayers over torch.func, for the operators that both support.

        Without the call, operators whose remaining time is not positive are left out; this happens
        with short measurements on a busy machine.
        """
        left = {
            name: (self._median(name, OURS, with_call), self._median(name, FUNC, with_call))
            for name, timings in self.timings.items()
            if {FUNC, OURS} <= timings.keys()
        }
        return {name: ours / func for name, (ours, func) in left.items() if min(ours, func) > 0}

    def floor(self) -> float:
        """Two plain operators without a transform, value and tangent, over torch.func's jvp.

        The geometric mean, with torch.func's call included.
        """
        return statistics.geometric_mean(
            2 * self._median(name, PLAIN, True) / self._median(name, FUNC, True)
            for name in self.ratios(with_call=True)
        )

    def lines(self) -> list[list[str]]:
        """The geometric mean and the slowest operator; the bars apply to the whole call."""
        alone, whole = self.ratios(with_call=False), self.ratios(with_call=True)
        mean, slowest = statistics.geometric_mean(whole.values()), max(whole, key=whole.__getitem__)
        without_call = f"{statistics.geometric_mean(alone.values()):.2f}" if alone else "too short"
        floor = f"{self.floor():.2f}"
        return [
            ["two plain operators, survey: geometric mean", FUNC, "", "", floor, "", ""],
            ["jvp, survey, the call taken off: geometric mean", FUNC, "", "", without_call, "", ""],
            ["jvp, survey: geometric mean", FUNC, "", "", *judged(mean, MEAN_BAR), ""],
            [f"jvp, survey: {slowest}", FUNC, "", "", *judged(whole[slowest], SLOWEST_BAR), ""],
        ]

    def zero_tensors(self) -> str:
        """The cost of a constant operand, relative to the plain operator."""
        rows = [
            [
                name,
                str(self.timings[name][PLAIN]),
                *(f"{self._over_plain(name, jvp):.1f}" for jvp in JVPS),
            ]
            for name in WITH_ZERO_TENSORS
        ]
        return page.table(
            ["an operand has no tangent", "plain, µs", *(f"{jvp} / plain" for jvp in JVPS)], rows
        )

    def table(self) -> str:
        """Those that torch.func rejects first, then the slowest compared with torch.func."""
        alone, whole = self.ratios(with_call=False), self.ratios(with_call=True)
        rows = [
            [
                name,
                *(str(self.timings[name].get(peer, "refused")) for peer in (PLAIN, *JVPS)),
                *(f"{of[name]:.2f}" if name in of else "" for of in (alone, whole)),
            ]
            for name in sorted(self.timings, key=lambda name: -alone.get(name, float("inf")))
        ]
        nothing = ["(no operator)", "", *(str(self.nothing[jvp]) for jvp in JVPS), "", ""]
        ratio = f"{OURS} / {FUNC}"
        return page.table(
            ["jvp of", "plain, µs", *(f"{jvp}, µs" for jvp in JVPS), ratio, "the call included"],
            [nothing, *rows],
        )

    def _median(self, name: str, peer: str, with_call: bool) -> float:
        whole = self.timings[name][peer].median
        return whole if with_call else whole - self.nothing[peer].median

    def _over_plain(self, name: str, peer: str) -> float:
        return self._median(name, peer, with_call=False) / self.timings[name][PLAIN].median
