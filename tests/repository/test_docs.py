"""The examples in README, docs/ and the public docstrings give the output they show."""

import doctest
import importlib
import inspect
import itertools
import pkgutil
import re
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers
from tests.support import errors_page
from torchlayers import (
    autograd_function,
    debug,
    distributed,
    errors,
    extend,
    graph,
    implicit,
    random,
    testing,
)
from torchlayers.autograd_function import custom_function_call
from torchlayers.graph import differentiate

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RULES = ROOT / "csrc" / "rules"
BLOCK = re.compile(r"^```(?:python|pycon)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STATED = re.compile(r"^(?P<call>.+?)  # (?P<value>tensor\(.*\)|'.*'|\{.*\}|True)$", re.MULTILINE)

# Pages with code, and the least number of examples on each: values stated in comments of a program,
# and inputs of a session.
PAGES = {
    "README.md": 2,
    "docs/compile.md": 40,
    "docs/control-flow.md": 13,
    "docs/custom-functions.md": 3,
    "docs/deploy.md": 2,
    "docs/custom-operators.md": 5,
    "docs/distributed.md": 1,
    "docs/errors.md": 14,
    "docs/forward-mode.md": 3,
    "docs/from-jax.md": 59,
    "docs/from-torch-func.md": 20,
    "docs/gpu.md": 1,
    "docs/graph-fx.md": 5,
    "docs/graph.md": 15,
    "docs/guide.md": 5,
    "docs/how-to/dp-sgd.md": 3,
    "docs/how-to/equilibrium-layers.md": 4,
    "docs/how-to/influence.md": 4,
    "docs/how-to/laplace.md": 4,
    "docs/how-to/maml.md": 3,
    "docs/how-to/ntk.md": 4,
    "docs/how-to/per-sample-gradients.md": 7,
    "docs/how-to/physics.md": 10,
    "docs/how-to/pinns.md": 3,
    "docs/how-to/training.md": 6,
    "docs/implicit.md": 20,
    "docs/in-place.md": 1,
    "docs/index.md": 7,
    "docs/install.md": 4,
    "docs/layers.md": 2,
    "docs/laplacian.md": 9,
    "docs/memory.md": 8,
    "docs/modules.md": 6,
    "docs/performance.md": 8,
    "docs/random.md": 7,
    "docs/reverse-mode.md": 3,
    "docs/sparse.md": 12,
    "docs/see-the-stack.md": 12,
    "docs/sharp-bits.md": 60,
    "docs/taps.md": 6,
    "docs/testing.md": 4,
    "docs/taylor-mode.md": 7,
    "docs/tracing.md": 3,
    "docs/tutorial.md": 70,
    "docs/which-transform.md": 17,
}


TABLE = re.compile(r"^(?P<head>\|.*\|)\n\|[-:| ]+\|\n(?P<rows>(?:\|.*\|\n)+)", re.MULTILINE)
SOURCE = re.compile(r"\[.*\]\((?P<page>[\w-]+\.md)#.*\)")


def tables(page):
    """The tables of a page: a list of rows for each, a row as a dict from header to cell."""
    for table in TABLE.finditer((DOCS / page).read_text("utf-8")):
        head, *rows = (
            [cell.strip() for cell in line[1:-1].split("|")]
            for line in [table["head"], *table["rows"].splitlines()]
        )
        yield [dict(zip(head, row, strict=False)) for row in rows]  # code may hold a |


def without_spread(row):
    """The row's cells; 3.32 (0.07), a median with its interquartile range, becomes 3.32."""
    return {name: re.sub(r" \([\d.,]+\)$", "", cell) for name, cell in row.items()}


def test_figures_of_the_performance_page_are_those_of_their_tables():
    """A row that ends with a link is part of a row on that page, under the same headers."""
    found = 0
    for row in (row for table in tables("performance.md") for row in table if "from" in row):
        page = SOURCE.fullmatch(row.pop("from"))["page"]
        known = [without_spread(known) for table in tables(page) for known in table]
        assert any(row.items() <= each.items() for each in known), row
        found += 1
    assert found == 24


def with_code():
    pages = [*ROOT.glob("*.md"), *(page for page in ROOT.glob("*/**/*.md") if is_ours(page))]
    return [page for page in pages if BLOCK.search(page.read_text("utf-8"))]


def is_ours(page):
    # test_csrc_tour.py runs the code in csrc/README.md.
    return page.relative_to(ROOT).parts[0] in ("benchmarks", "docs", "examples", "tests")


def test_no_page_with_code_is_left_out():
    assert {page.relative_to(ROOT).as_posix() for page in with_code()} == PAGES.keys()


@pytest.mark.sweep
@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_give_the_stated_output(page, monkeypatch):
    """The page is run from start to end as one program."""
    rules = custom_function_call.functorch_table.copy()  # one page replaces an entry
    monkeypatch.setattr(custom_function_call, "functorch_table", rules)
    # Printed graphs are compared exactly.
    flags = 0 if "graph" in page else doctest.NORMALIZE_WHITESPACE
    namespace = {} if page != "docs/errors.md" else {"torch": torch, "torchlayers": torchlayers}
    examples = 0
    try:
        blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
        for is_session, joined in itertools.groupby(blocks, lambda block: block.startswith(">>> ")):
            run = session if is_session else program
            examples += run("\n".join(joined), namespace, flags)
    finally:
        torchlayers.uninstall()
    assert examples >= PAGES[page]


def program(text, namespace, flags):
    """Runs a program and compares the values stated in its comments. Returns how many."""
    exec(text, namespace)
    for match in STATED.finditer(text):
        value = eval(match["value"], {"tensor": torch.tensor})
        found = eval(match["call"], namespace)
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(found, value)
        else:
            assert found == value
    return len(STATED.findall(text))


def session(text, namespace, flags):
    """Runs a session and compares its output. Returns the number of inputs."""
    test = doctest.DocTestParser().get_doctest(text, {}, "session", None, 0)
    test.globs = namespace
    failed, attempted = doctest.DocTestRunner(optionflags=flags).run(test, clear_globs=False)
    assert failed == 0
    return attempted


MODULES = (
    torchlayers,
    errors,
    autograd_function,
    distributed,
    extend,
    graph,
    implicit,
    implicit.solvers,
    debug,
    distributed,
    extend,
    graph,
    random,
    testing,
)


def public():
    """Our public functions, classes and methods, by name."""
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.ismodule(value) or getattr(torch.func, name, None) is value:
                continue
            yield f"{module.__name__}.{name}", value
            for method, function in vars(value).items() if inspect.isclass(value) else ():
                is_torchs = any(method in vars(base) for base in inspect.getmro(value)[1:])
                if inspect.isfunction(function) and not method.startswith("_") and not is_torchs:
                    yield f"{module.__name__}.{name}.{method}", function


PUBLIC = dict(public())


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name):
    assert ">>> " in inspect.getdoc(PUBLIC[name])


def test_public_names_are_found():
    assert {"torchlayers.vmap", "torchlayers.extend.vjp_rule"} < PUBLIC.keys()
    assert {"torchlayers.errors.RuleError", "torchlayers.graph.Gradient.backward"} < PUBLIC.keys()
    modules = {name for name in torchlayers.__all__ if inspect.ismodule(getattr(torchlayers, name))}
    assert modules == {
        "autograd_function",
        "checkpoint_policies",
        "compiled",
        "debug",
        "distributed",
        "errors",
        "extend",
        "graph",
        "implicit",
        "memory",
        "random",
        "testing",
        "tree",
    }


def docstrings():
    """All docstrings with examples, public or not."""
    for found in pkgutil.walk_packages(torchlayers.__path__, "torchlayers."):
        if found.name != "torchlayers._C":
            module = importlib.import_module(found.name)
            for test in doctest.DocTestFinder().find(module):
                if test.examples:
                    yield pytest.param(module, test.docstring, id=test.name)


@pytest.mark.parametrize(("module", "docstring"), [*docstrings()])
def test_examples_of_a_docstring_give_the_stated_output(module, docstring):
    namespace = {"torch": torch, "torchlayers": torchlayers}
    exec(f"from {module.__name__} import *", namespace)
    assert session(docstring, namespace, doctest.NORMALIZE_WHITESPACE) > 0


def test_error_list_matches_the_docstrings():
    """python -m tests.support.errors_page writes the list."""
    text = errors_page.PAGE.read_text("utf-8")
    assert errors_page.page(text) == text


def squeezed(text):
    """The text without comments and without the whitespace of line breaks."""
    return re.sub(r"\s+", "", re.sub(r"//.*", "", text))


LINES = [
    (page, line)
    for page in ("forward-mode.md", "reverse-mode.md")
    for block in re.findall(r"```cpp\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    for line in squeezed(block).split(";")[:-1]
]


@pytest.mark.parametrize(("page", "line"), LINES)
def test_quoted_rule_lines_are_in_the_sources(page, line):
    """The line is in csrc/rules/, alone or in a list of names that share it; … matches anything."""
    rules = "".join(squeezed(path.read_text("utf-8")) for path in RULES.rglob("*.cpp"))

    def found(line, before=""):
        return re.search(before + re.escape(line).replace("…", ".*?") + ";", rules)

    name = re.search(r'"([\w.]+)"', line).group()
    in_a_list = re.escape(name) + r"[^{}]*\}\)\{"
    assert found(line) or found(line.replace(name, "name", 1), in_a_list)


def test_graph_picture_matches_the_graph_on_its_page():
    inputs = torch.ones(2, 3), torch.ones(3, 4)
    drawn = differentiate(make_fx(lambda x, w: (x @ w).tanh().sum(0))(*inputs)).to_svg()
    assert (DOCS / "images" / "graph-fx.svg").read_text() == drawn
