"""Cuts a tape into stages, with the boundary, the saved values and the costs of each.

The boundary between two operators is the set of earlier values that later operators read, or that
are saved later for the reverse pass. Boundaries are small where a network's blocks begin; a stage
is the operators between two of them. Until it is reversed, a stage may hold either all values that
it saves, or a minimum cut (fx/min_cut.py) between the operators that are expensive to recompute and
the values that it saves.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torchlayers.fx.min_cut import Network
from torchlayers.remat.budget.tape import is_product

# More stages make better plans, which take longer to find: the third power of this.
_STAGES = 96


class TapeSummary(NamedTuple):
    """A tape without its tensors.

    Attributes:
        calls: for each operator (function, the states it reads, those it makes with their bytes,
            whether it may run again); states are given by number.
        packs: the states that were saved for the reverse pass, each with the index of the operator
            whose gradient needs it. The index may be one past the last operator.
    """

    calls: list[Any]
    packs: list[tuple[int, int]]


class RetentionOption(NamedTuple):
    """A set of states that a stage may hold until it is reversed, and its costs, passed to csrc."""

    keeps: frozenset[int]
    retained: int
    running: int
    again: float


class Stage(NamedTuple):
    boundary: frozenset[int]  # earlier states that this stage or later ones read
    saves: frozenset[int]
    forward: float
    saving: float
    passing: int
    saved: int
    ways: list[RetentionOption]


class Stages:
    """The stages of the operators that are needed to recompute the saved states."""

    def __init__(self, outline: TapeSummary, costs: Sequence[float]) -> None:
        self.outline = outline
        self.costs = costs
        self.size: dict[int, int] = {}
        self.made_at: dict[int, int] = {}  # the operator that makes each recomputable state
        for i, (_, _, makes, may_repeat) in enumerate(outline.calls):
            for number, size in makes:
                self.size[number] = size
                if may_repeat:
                    self.made_at[number] = i
        self.needed = self._closure([number for number, _ in outline.packs], ())
        uses: dict[int, list[int]] = {}
        for i in self.needed:
            for number in outline.calls[i][1]:
                uses.setdefault(number, []).append(i)
        for number, i in outline.packs:
            uses.setdefault(number, []).append(i)
        # States that can't be recomputed and are read: always held.
        self.pinned = [n for n in uses if n in self.size and n not in self.made_at]
        self.first_use = {number: min(places) for number, places in uses.items()}
        self.last_use = {number: max(places) for number, places in uses.items()}
        self.cuts = self._cuts()
        self.stages = self._stages()
        self.between = [
            [self.bytes(later.boundary - stage.boundary) for later in self.stages[s + 1 :]]
            for s, stage in enumerate(self.stages)
        ]

    def stage_of(self, operator: int) -> int:
        return min(bisect_right(self.cuts, operator), len(self.stages)) - 1

    def bytes(self, numbers: Iterable[int]) -> int:
        return sum(self.size[number] for number in numbers)

    def saved(self) -> set[int]:
        """Returns all saved states that could be freed and recomputed."""
        return {number for number, _ in self.outline.packs if number in self.made_at}

    def _closure(self, wanted: Iterable[int], there: Collection[int]) -> list[int]:
        """Returns the operators, in order, that compute the wanted states from those held."""
        places: set[int] = set()
        waiting = [number for number in wanted if number not in there]
        while waiting:
            made_at = self.made_at.get(waiting.pop())
            if made_at is not None and made_at not in places:
                places.add(made_at)
                waiting += [n for n in self.outline.calls[made_at][1] if n not in there]
        return sorted(places)

    def _boundary_bytes(self) -> list[int]:
        """Returns the size of the boundary before each needed operator."""
        change: Counter[int] = Counter()
        for number, last in self.last_use.items():
            if number in self.made_at:
                change[self.made_at[number] + 1] += self.size[number]
                change[last + 1] -= self.size[number]
        at = [*accumulate(change[i] for i in range(len(self.outline.calls)))]
        return [at[i] for i in self.needed]

    def _cuts(self) -> list[int]:
        """Returns the first operator of each stage."""
        needed = self.needed
        if len(needed) <= _STAGES:
            return needed or [0]
        sizes = self._boundary_bytes()
        # Cut at the smallest boundary in each of _STAGES - 1 windows of equal cost.
        total = [*accumulate(self.costs[i] for i in needed)]
        windows: dict[int, int] = {}
        for place in range(1, len(needed)):
            window = int(total[place - 1] / total[-1] * (_STAGES - 1))
            best = windows.get(window)
            if best is None or sizes[place] < sizes[best]:
                windows[window] = place
        return [needed[0], *(needed[place] for place in sorted(windows.values()))]

    def _stages(self) -> list[Stage]:
        count = len(self.cuts)
        operators: list[list[int]] = [[] for _ in range(count)]
        for i in self.needed:
            operators[self._stage_of(i)].append(i)
        saves: list[set[int]] = [set() for _ in range(count)]
        for number, i in self.outline.packs:
            if number in self.made_at:
                saves[self._stage_of(i)].add(number)
        boundaries: list[set[int]] = [set() for _ in range(count + 1)]
        for number, last in self.last_use.items():
            if number in self.made_at:
                for s in range(self._stage_of(self.made_at[number]) + 1, self._stage_of(last) + 1):
                    boundaries[s].add(number)
        return [
            self._stage(operators[s], saves[s], boundaries[s], boundaries[s + 1])
            for s in range(count)
        ]

    def _stage_of(self, operator: int) -> int:
        return max(bisect_right(self.cuts, operator) - 1, 0)

    def _stage(
        self, operators: list[int], saves: set[int], before: set[int], after: set[int]
    ) -> Stage:
        everything = saves | after
        ways = [self._way(everything, before, after, operators, saves)]
        cheap = self._cut(operators, saves, before)
        if cheap is not None and not cheap >= saves - before:
            ways.append(self._way(cheap | after, before, after, operators, saves))
        closure = self._closure(saves, before)
        return Stage(
            frozenset(before),
            frozenset(saves),
            forward=self._cost(operators),
            saving=self._cost(closure),
            passing=self._peak(operators, after - before),
            saved=self._peak(closure, saves - before),
            ways=ways,
        )

    def _way(
        self,
        keeps: set[int],
        before: set[int],
        after: set[int],
        operators: list[int],
        saves: set[int],
    ) -> RetentionOption:
        option = keeps - before
        return RetentionOption(
            frozenset(keeps),
            self.bytes(option),
            self._peak(operators, option),
            self._cost(self._closure(saves, before | keeps)),
        )

    def _cost(self, operators: Iterable[int]) -> float:
        return sum(self.costs[i] for i in operators)

    def _peak(self, operators: list[int], to_the_end: Collection[int]) -> int:
        """Returns the peak bytes of the states that these operators make; `to_the_end` are
        held until the end."""
        left = Counter(number for i in operators for number in self.outline.calls[i][1])
        alive: set[int] = set()
        now = most = 0
        for i in operators:
            _, reads, makes, _ = self.outline.calls[i]
            for number, size in makes:
                alive.add(number)
                now += size
            most = max(most, now)
            for number in (*reads, *(number for number, _ in makes)):
                left[number] -= number in reads
                if number in alive and left[number] <= 0 and number not in to_the_end:
                    alive.remove(number)
                    now -= self.size[number]
        return most

    def _cut(self, operators: list[int], saves: set[int], before: set[int]) -> set[int] | None:
        """Returns the smallest set of states, in bytes, from which the saved states can be
        recomputed without any matrix product or the like (`is_product`)."""
        closure = self._closure(saves, before)
        if len(closure) < 2:
            return None
        network = Network()
        for i in closure:
            func, reads, makes, _ = self.outline.calls[i]
            for number, size in makes:
                if number not in self.made_at:
                    continue
                network.edge((number, "in"), (number, "out"), max(size, 1))
                if is_product(func):
                    network.edge("source", (number, "in"), None)
                if number in saves:
                    network.edge((number, "out"), "sink", None)
                for read in set(reads) - before:
                    if read in self.made_at:
                        network.edge((read, "out"), (number, "in"), None)
        network.edge("source", "none", 0)
        network.edge("none", "sink", 0)
        side = network.smallest_cut("source", "sink")
        states = [number for i in closure for number, _ in self.outline.calls[i][2]]
        return {n for n in states if (n, "in") in side and (n, "out") not in side}
