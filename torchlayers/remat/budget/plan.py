"""Plan: determines which values of a tape to hold and which to recompute within a memory budget."""

from collections.abc import Sequence, Set

from torchlayers import _C
from torchlayers.core.errors import MemoryBudgetError
from torchlayers.remat.budget.stages import Stages, TapeSummary


class Plan:
    """The plan for all tapes with this outline.

    Args:
        budget: in bytes, or a fraction of the bytes that would be held without one.
    """

    def __init__(
        self, api: str, name: str, outline: TapeSummary, costs: Sequence[float], budget: int | float
    ) -> None:
        self.outline = outline
        self.costs = costs
        self.stages = stages = Stages(outline, costs)
        saved = stages.saved()
        pinned = stages.bytes(stages.pinned)
        everything = pinned + stages.bytes(saved)
        self.budget = int(budget * everything) if isinstance(budget, float) else budget
        self.chain: _C.ChainPlan | None = None
        self.at_first = saved
        self.first_stage = {n: self.stage_of(i) for n, i in stages.first_use.items()}
        if everything <= self.budget:
            return
        self.room = self.budget - pinned
        self.chain = _C.ChainPlan(
            [
                (
                    stage.forward,
                    stage.saving,
                    stage.passing,
                    stage.saved,
                    [(way.retained, way.running, way.again) for way in stage.ways],
                )
                for stage in stages.stages
            ],
            stages.between,
            max(self.room, 0),
        )
        if self.room < self.chain.least:
            least = min(pinned + self.chain.least, everything)
            raise MemoryBudgetError(
                f"torchlayers: {api}: memory_budget={budget!r} allows {self.budget} of the "
                f"{everything} bytes that {name} would save for its gradient, but at least {least} "
                "are needed.",
                least,
            )
        self.at_first = self.wanted(0, len(stages.stages) - 1, self.room)

    def stage_of(self, operator: int) -> int:
        return max(self.stages.stage_of(operator), 0)

    def begins(self, stage: int, there: Set[int]) -> int:
        """Returns the last stage, at or before this one, whose boundary values are held."""
        while stage and not self.stages.stages[stage].boundary <= there:
            stage -= 1
        return stage

    def wanted(self, first: int, last: int, room: int) -> set[int]:
        """Returns the states to hold once these stages have run and the last is to be reversed."""
        assert self.chain is not None
        stages = self.stages.stages
        wanted: set[int] = set()
        s = first
        while (choice := self.chain.first(s, last, room)) != 0:
            if choice > 0:
                room -= self.stages.between[s][choice - s - 1]
                s = choice
                wanted |= stages[s].boundary
            else:
                way = stages[s].ways[-1 - choice]
                room -= way.retained
                wanted |= way.keeps
                s += 1
        return wanted | stages[last].saves
