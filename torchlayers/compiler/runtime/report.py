"""Reports on what a compiled function has captured so far."""

from collections.abc import Callable
from typing import NamedTuple

from torchlayers.core.errors import TransformError
from torchlayers.core.html_table import html_lines, html_table


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
        splits: the lines that read values of tensors, with what was read, for a function that is
            compiled in parts.
        writes: the places of Python's state that each call writes to.
    """

    arguments: str
    how: str
    seconds: float
    calls: int
    operators: int
    why: str
    guards: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class Report(NamedTuple):
    """The result of :meth:`Compiled.report`; it prints, and notebooks show it, as a table."""

    name: str
    signatures: tuple[SignatureReport, ...]
    as_it_is: str = ""  # why other calls run the function uncompiled
    stages: tuple[Callable[[], list[tuple[str, str]]], ...] = ()  # of the signatures

    def show(self, signature: int = -1) -> str:
        """The captured graph as Python, after each stage, with the lines of the program.

        The stages are the graph as captured, after each simplification that changed it, and as
        handed to the backend; before them, the lines that read values of tensors, which split a
        graph into parts, and what each call writes to Python. Where autograd differentiates the
        function, the graph has the reverse pass too, which is split off last. The function is
        captured again for it, on fake tensors: nothing is kept for reports.

        Args:
            signature: which of ``signatures``, the last one by default.
        Returns:
            The text, to print.
        Raises:
            TransformError: there is no such signature.
        Example:
            >>> compiled = torchlayers.compile(lambda x: x.T.T.sin(), backend="replay")
            >>> _ = compiled(torch.ones(2, 3))
            >>> *_, last, _ = compiled.report().show().splitlines()
            >>> last.strip()
            'sin = torch.ops.aten.sin.default(x)'

        Source: jax.stages.Lowered.as_text.
        """
        count = len(self.signatures)
        if not -count <= signature < count:
            raise TransformError(
                f"torchlayers: show: {self.name} has {count} captured signatures, so there is no "
                f"number {signature}. Call the function first."
            )
        shown = self.stages[signature % count]()
        return "\n\n".join(f"-- {name}\n{code}" for name, code in shown)

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
            lines += [f"     {split}" for split in entry.splits]
            if entry.writes:
                lines.append(f"     writes: {listed(entry.writes)}")
        if self.as_it_is:
            lines.append(f"  other calls run uncompiled: {self.as_it_is}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [("", "arguments", "runs by", "operators", "seconds", "calls", "new because")]
        rows += [
            (
                str(i),
                entry.arguments,
                entry.how,
                str(entry.operators),
                f"{entry.seconds:.2f}",
                str(entry.calls),
                entry.why,
            )
            for i, entry in enumerate(self.signatures)
        ]
        lines = [self.name]
        if self.as_it_is:
            lines.append(f"other calls run uncompiled: {self.as_it_is}")
        return html_lines(lines) + html_table(rows, right=(3, 4, 5))


_SHOWN = 8


def listed(names: tuple[str, ...]) -> str:
    """Lists the first distinct names: many modules have the same ones."""
    once = [*dict.fromkeys(name.rstrip(",") for name in names)]
    more = f", and {len(once) - _SHOWN} more" if len(once) > _SHOWN else ""
    return ", ".join(once[:_SHOWN]) + more
