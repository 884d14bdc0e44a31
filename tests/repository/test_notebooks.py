"""Examples are notebooks too: each script is the only source of its notebook."""

import ast

import pytest

pytest.importorskip("jupytext", reason="the extra 'notebooks' is not installed")
pytest.importorskip("nbclient", reason="the extra 'notebooks' is not installed")

from examples import notebooks
from tests.repository.test_examples import EXAMPLES


def test_every_example_is_a_notebook():
    assert {*EXAMPLES, "digits", "tracing"} == {*notebooks.examples()}


@pytest.mark.parametrize("name", notebooks.examples())
def test_a_notebook_has_the_statements_of_its_script(name):
    made = notebooks.notebook(name)
    code = [cell.source for cell in made.cells[2:] if cell.cell_type == "code"]
    script = ast.parse((notebooks.ROOT / "examples" / f"{name}.py").read_text("utf-8"))
    docstring, *statements = script.body
    assert made.cells[0].source.startswith(f"# {docstring.value.value.splitlines()[0].rstrip('.')}")
    assert ast.dump(ast.parse("\n".join(code))) == ast.dump(ast.Module(statements, []))


@pytest.mark.full
@pytest.mark.parametrize("name", notebooks.examples())
def test_a_notebook_runs(name):
    made = notebooks.notebook(name)
    notebooks.run(made)
    assert made.cells[-1].outputs


def test_a_cell_that_fails_ends_the_run():
    made = notebooks.notebook("root_finder")
    del made.cells[2:]
    made.cells[1].source = "raise ValueError('wrong')"
    with pytest.raises(Exception, match=r"raise ValueError\('wrong'\)"):
        notebooks.run(made)
