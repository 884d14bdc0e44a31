"""Reports on what a compiled function has captured so far."""

from typing import NamedTuple


class SignatureReport(NamedTuple):
    """One captured signature.

    Attributes:
        arguments: the leaves of the arguments in short form: ``f32[3, 2], 1``.
        how: the backend that runs it, "inductor" or "replay", and why it is not the requested one
            ("replay, until compiled");
            for a differentiated function, those of the forward and of the backward.
        seconds: how long capture and compilation took.
        calls: the number of calls.
        operators: the number of operators in the graph.
        why: how it differs from the most similar earlier signature.
        guards: the Python values that were read, which are checked before each call.
    """

    arguments: str
    how: str
    seconds: float
    calls: int
    operators: int
    why: str
    guards: tuple[str, ...] = ()


class Report(NamedTuple):
    """The result of :meth:`Compiled.report`; it prints as a table."""

    name: str
    signatures: tuple[SignatureReport, ...]
    as_it_is: str = ""  # why other calls run the function uncompiled

    def __repr__(self) -> str:
        count = len(self.signatures)
        lines = [f"{self.name}: {count} signature{'' if count == 1 else 's'}"]
        for i, entry in enumerate(self.signatures):
            lines.append(
                f"  {i}: ({entry.arguments}) {entry.how}, {entry.operators} operators, "
                f"{entry.seconds:.2f} s, {entry.calls} call{'' if entry.calls == 1 else 's'}"
            )
            if entry.why:
                lines.append(f"     new because {entry.why}")
            if entry.guards:
                lines.append(f"     guards: {listed(entry.guards)}")
        if self.as_it_is:
            lines.append(f"  other calls run uncompiled: {self.as_it_is}")
        return "\n".join(lines)


_SHOWN = 8


def listed(names: tuple[str, ...]) -> str:
    """Lists the first distinct names: many modules have the same ones."""
    once = [*dict.fromkeys(names)]
    more = f", and {len(once) - _SHOWN} more" if len(once) > _SHOWN else ""
    return ", ".join(once[:_SHOWN]) + more
