"""What a compiled function has done so far, to read."""

from typing import NamedTuple


class SignatureReport(NamedTuple):
    """One signature that was recorded.

    Attributes:
        arguments: the leaves of the arguments, shortly: ``f32[3, 2], 1``.
        how: what runs it: "inductor", "replay", and why not what was asked for. Where the function
            is differentiated, the forward's and the backward's.
        seconds: how long recording and compiling took.
        calls: how often it was called.
        operators: how many operators its graph has.
        why: how it differs from the most similar signature before it.
        guards: what it has read of Python, which is compared before each call.
    """

    arguments: str
    how: str
    seconds: float
    calls: int
    operators: int
    why: str
    guards: tuple[str, ...] = ()


class Report(NamedTuple):
    """What :meth:`Compiled.report` returns; it prints as a table."""

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
                lines.append(f"     guards: {_listed(entry.guards)}")
        if self.as_it_is:
            lines.append(f"  other calls run as they are: {self.as_it_is}")
        return "\n".join(lines)


_SHOWN = 8


def _listed(names: tuple[str, ...]) -> str:
    """The first ones, each once: many layers have the same."""
    once = [*dict.fromkeys(names)]
    more = f", and {len(once) - _SHOWN} more" if len(once) > _SHOWN else ""
    return ", ".join(once[:_SHOWN]) + more
