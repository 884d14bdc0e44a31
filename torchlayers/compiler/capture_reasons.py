"""Why a compiled function was captured again, and a warning of numbers that keep changing."""

from collections.abc import Sequence
from typing import Any

from torchlayers.compiler.capture.signature import (
    count_differences,
    describe_difference,
    explain_new_signature,
)
from torchlayers.compiler.runtime.call import Entry
from torchlayers.core.errors import warn

# A number that has caused this many further captures triggers a warning.
_OFTEN = 3


class CaptureReasons:
    """The reasons of one function's captures."""

    def __init__(self) -> None:
        self._changes: dict[Any, int] = {}  # how often each guarded Python number changed

    def reason(self, name: str, entry: Entry, earlier: Sequence[Entry]) -> str:
        """Explains why no earlier entry could be used; warns if a number keeps changing."""
        if not earlier:
            return ""
        signature = entry.signature
        closest = min(
            reversed(earlier), key=lambda other: count_differences(signature, other.signature)
        )
        if closest.signature == signature:
            if closest.grads_like != entry.grads_like:
                return "a .grad that it reads has another shape, dtype or layout, or is None"
            pairs = zip(entry.captured_like, closest.captured_like, strict=False)
            for i, (now, was) in enumerate(pairs):
                if now != was:
                    return f"captured tensor {i} {describe_difference(now, was)}"
            if changed := [state.name for state in closest.carried if state.now() is None]:
                return f"{changed[0]} has changed"
            if any(not hooked.still_holds() for hooked in closest.hooked):
                return "a captured tensor has other hooks"
            if closest.guarded is not None and (differs := closest.guarded.failed()):
                if (place := closest.guarded.changing()) is not None:
                    self._count_number(name, place, differs)
                return differs
        return explain_new_signature(signature, closest.signature)

    def _count_number(self, name: str, place: Any, differs: str) -> None:
        self._changes[place] = self._changes.get(place, 0) + 1
        if self._changes[place] == _OFTEN:
            warn(
                f"torchlayers: compile: {name} was captured {_OFTEN + 1} times because a "
                f"number changed: {differs}. Each value needs its own captured graph. Pass the "
                "number as a tensor argument, or store it in a tensor and update that in place "
                "(fill_).",
            )
