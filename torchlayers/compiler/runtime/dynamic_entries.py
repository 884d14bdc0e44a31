"""Finds or makes the entry of a call whose sizes are new, from graphs with symbolic sizes."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torchlayers.compiler.capture.record import record
from torchlayers.compiler.capture.signature import Signature, describe_leaves
from torchlayers.compiler.runtime.build import Built, EntryRunner, build_dynamic_entry
from torchlayers.compiler.runtime.call import Entry
from torchlayers.compiler.runtime.dynamic_shapes import (
    DynamicGraph,
    NotSymbolicError,
    changed_sizes,
)
from torchlayers.compiler.runtime.report import SignatureReport
from torchlayers.compiler.runtime.request import CompileRequest
from torchlayers.compiler.runtime.verify import VerifiedRun
from torchlayers.core.errors import warn


class DynamicEntries:
    """The families of one function, made as calls come.

    If one can't be made, a warning says why, and no more are tried.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._all: list[_DynamicEntry] = []
        self._failed = False

    def find(
        self,
        request: CompileRequest,
        given: Signature,
        before: Sequence[Signature],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> tuple[Entry, bool] | None:
        """Returns the entry for a call that a family covers, and whether it is permanent, or None.

        Args:
            before: the signatures that were captured separately.
        """
        for made in self._all:
            if (found := made.find(request, given, args, kwargs)) is not None:
                return found
        self._failed = self._failed or any(made.is_refuted() for made in self._all)
        similar = [one for one in before if changed_sizes(given, one) is not None]
        if self._failed or not similar:
            return None
        try:
            family = DynamicGraph(request, given, similar[-1], args, kwargs)
        except NotSymbolicError as error:
            self._failed = True
            if not self._all:
                warn(
                    f"torchlayers: compile: {self._name} can't be captured with symbolic sizes: "
                    f"{error}. Each shape is captured separately.",
                )
            return None
        made = _DynamicEntry(family)
        if (found := made.find(request, given, args, kwargs)) is not None:
            self._all.append(made)
        return found

    def wait(self, deadline: float | None) -> bool:
        return all([made.wait(deadline) for made in self._all])

    def reports(self) -> list[SignatureReport]:
        return [made.report() for made in self._all]


class _DynamicEntry:
    """A family, with permanent entries for its first sizes and an LRU cache for later ones."""

    KEPT = 64

    def __init__(self, family: DynamicGraph) -> None:
        self._family = family
        self._first: dict[Any, Built] = {}
        self._last: OrderedDict[Any, Built] = OrderedDict()
        self._gone: list[SignatureReport] = []
        self._refuted = False
        self._compared: EntryRunner | None = None  # what runs the second call, which is compared

    def find(
        self, request: CompileRequest, given: Signature, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Entry, bool] | None:
        if (numbers := self._family.fits(given)) is None or self.is_refuted():
            return None
        key = given.key()
        if key in self._first:
            return self._first[key].entry, True
        if key in self._last:
            self._last.move_to_end(key)
            return self._last[key].entry, False
        alone = None
        if self._first and self._compared is None and request.settings.check:
            guarded = request.settings.guards
            alone = record(request.func, args, kwargs, gradients=given.modes.grad, guarded=guarded)
            if not self._family.is_like(alone, numbers):
                self._refuted = True
                return None
        made = build_dynamic_entry(request, self._family, given, args, kwargs, numbers, alone)
        if alone is not None:
            self._compared = made.runs
        if len(self._first) < self.KEPT:
            self._first[key] = made
            return made.entry, True
        self._last[key] = made
        if len(self._last) > self.KEPT:
            gone = self._last.popitem(last=False)[1].report()
            self._gone = [_together([*self._gone, gone])]
        return made.entry, False

    def wait(self, deadline: float | None) -> bool:
        made = (*self._first.values(), *self._last.values())
        return all([each.runs.wait(deadline) for each in made])

    def is_refuted(self) -> bool:
        """Whether the check with other sizes failed. NOTE [A size that is a number]."""
        return self._refuted or (
            isinstance(self._compared, VerifiedRun) and bool(self._compared.problem)
        )

    def report(self) -> SignatureReport:
        kept = [made.report() for made in (*self._first.values(), *self._last.values())]
        report = _together([*self._gone, *kept])
        return report._replace(
            arguments=describe_leaves(self._family.signature),
            seconds=report.seconds + self._family.seconds,
            why=self._family.why,
        )


def _together(reports: list[SignatureReport]) -> SignatureReport:
    return reports[0]._replace(
        how="; ".join(dict.fromkeys(one.how for one in reports)),
        seconds=sum(one.seconds for one in reports),
        calls=sum(one.calls for one in reports),
    )
