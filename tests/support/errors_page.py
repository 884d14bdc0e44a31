"""``python -m tests.support.errors_page``: writes the list of errors, from their docstrings, to
docs/errors.md."""

import inspect
import re
from pathlib import Path

from torchlayers import errors
from torchlayers.graph import GraphError

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
BEGIN, END = "<!-- errors: begin -->", "<!-- errors: end -->"
ERRORS = sorted(
    [*(getattr(errors, name) for name in errors.__all__), GraphError], key=lambda e: e.__name__
)


def page(text: str) -> str:
    """The page with its list regenerated."""
    listed = "\n".join([BEGIN, *map(section, ERRORS), END])
    return re.sub(f"{BEGIN}.*{END}", lambda _: listed, text, flags=re.DOTALL)


def section(error: type[Exception]) -> str:
    said, example = inspect.cleandoc(error.__doc__ or "").split("\n\nExample:\n")
    return "\n".join(
        [
            f"## {error.__name__}\n",
            f"{said} Caught as {' and '.join(built_in(error))}, too.\n",
            f"```pycon\n{inspect.cleandoc(example)}\n```\n",
        ]
    )


def built_in(error: type[Exception]) -> list[str]:
    """The most specific built-in exceptions that catch the error."""
    theirs = [kind for kind in error.__mro__ if kind.__module__ == "builtins"]
    special = [
        kind for kind in theirs if not any(issubclass(k, kind) and k is not kind for k in theirs)
    ]
    return [f"`{kind.__name__}`" for kind in special]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
