"""``python docs/site/reference_index.py``: lists the names of each reference page in its index."""

import re
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "reference"
INDEX = REFERENCE / "index.md"
BEGIN, END = "<!-- names: begin -->", "<!-- names: end -->"
# An entry made from a docstring, or a heading for what is torch's.
NAME = re.compile(r"^(?:::: |## .* \{ #)(?P<name>torchlayers\.\S+)", re.MULTILINE)


def written(text: str, nav: str) -> str:
    """The index with its table made anew: a row for each page, in the order of mkdocs.yml."""
    rows = [row(REFERENCE / page) for page in re.findall(r"reference/([\w-]+\.md)$", nav, re.M)]
    table = "\n".join(["| family | names |", "|---|---|", *(each for each in rows if each)])
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table}\n{END}", text, flags=re.DOTALL)


def row(page: Path) -> str:
    if page == INDEX:
        return ""
    text = page.read_text(encoding="utf-8")
    title = text.partition("\n")[0].removeprefix("# ")
    links = (
        f"[{name.removeprefix('torchlayers.')}]({page.name}#{name})" for name in NAME.findall(text)
    )
    return f"| [{title}]({page.name}) | {', '.join(links)} |"


def configuration() -> str:
    return (REFERENCE.parents[1] / "mkdocs.yml").read_text(encoding="utf-8")


if __name__ == "__main__":
    INDEX.write_text(written(INDEX.read_text(encoding="utf-8"), configuration()), encoding="utf-8")
