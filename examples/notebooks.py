"""Makes a notebook of each example, and runs it: build/notebooks/pinn.ipynb, with its results.

    python -m examples.notebooks               all examples
    python -m examples.notebooks pinn maml     these

The script stays the only source. Its docstring becomes the first cell, its paragraphs the next.
"""

import ast
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "notebooks"
# A notebook has no file and no command line, and lies two folders below the package's root.
SETUP = """import sys

sys.path.insert(0, "../..")
sys.argv = __file__, *_ = ["../../examples/{name}.py"]"""


def examples() -> list[str]:
    """The names of the scripts in examples/, without this one and the modules that they share."""
    scripts = (ROOT / "examples").glob("*.py")
    names = [path.stem for path in scripts if "__main__" in path.read_text("utf-8")]
    return sorted({*names} - {Path(__file__).stem})


def notebook(name: str) -> NotebookNode:
    """The notebook of an example, not run."""
    text = (ROOT / "examples" / f"{name}.py").read_text("utf-8")
    made = jupytext.reads(text, fmt="py:light")
    docstring = ast.get_docstring(ast.parse(text)) or ""
    title, _, rest = docstring.partition("\n")
    first = new_markdown_cell(f"# {title.rstrip('.')}\n{prose(rest)}")
    made.cells[0:1] = [first, new_code_cell(SETUP.format(name=name))]
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return made


def prose(text: str) -> str:
    """A docstring's text as Markdown: its double backquotes are code."""
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def run(made: NotebookNode) -> None:
    """Runs all cells, and keeps their results; raises the error of one that fails."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    where = {"metadata": {"path": str(FOLDER)}}
    client = NotebookClient(
        made, timeout=None, startup_timeout=300, kernel_name="python3", resources=where
    )
    client.execute()


def main() -> None:
    unknown = {*sys.argv[1:]} - {*examples()}
    if unknown:
        sys.exit(f"There is no example {', '.join(sorted(unknown))}.")
    for name in tqdm(sys.argv[1:] or examples(), disable=None):
        made = notebook(name)
        try:
            run(made)
        finally:
            nbformat.write(made, FOLDER / f"{name}.ipynb")
        print(f"{name}: {(FOLDER / f'{name}.ipynb').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
