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
    """

    arguments: str
    how: str
    seconds: float
    calls: int
    operators: int
    why: str


class Report(NamedTuple):
    """What :meth:`Compiled.report` returns; it prints as a table."""

    name: str
    signatures: tuple[SignatureReport, ...]

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
        return "\n".join(lines)
