"""A mutant: one change of one file, and the tests that have to see it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: of the fault, unique.
        file: the file that is changed, from the root of the project.
        text: what is replaced: occurs once in the file.
        replacement: what stands there instead.
        fault: what goes wrong, in a few words.
        tests: arguments of pytest that select the tests to run.
    """

    name: str
    file: str
    text: str
    replacement: str
    fault: str
    tests: str

    @property
    def room(self) -> str:
        """The half of the product and its folder, such as csrc/rules or torchlayers/compiler."""
        return "/".join(self.file.split("/")[:-1][:2])

    @property
    def is_compiled(self) -> bool:
        return self.file.startswith("csrc/")

    def applied_to(self, source: str) -> str:
        """The file's text with the change.

        Raises:
            ValueError: the text does not occur exactly once.
        """
        if (count := source.count(self.text)) != 1:
            raise ValueError(
                f"The mutant {self.name!r} changes a text that occurs {count} times in "
                f"{self.file}, not once: the code has moved. Change the mutant, which is in "
                "tests/mutants/faults, accordingly."
            )
        return source.replace(self.text, self.replacement)
