"""The examples in docs/ and in the docstrings of torchlayers.graph give what they say."""

import doctest
import re
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers.graph
from torchlayers.autograd_function import custom_function_call
from torchlayers.graph import differentiate, gradient, script

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

DOCS = Path(__file__).parent.parent / "docs"
RULES = DOCS.parent / "csrc" / "rules"
STATED = re.compile(r"^(?P<call>.+?)  # (?P<value>tensor\(.*\)|'.*'|\{.*\}|True)$", re.MULTILINE)


@pytest.mark.parametrize("page", ["custom-functions.md", "forward-mode.md", "reverse-mode.md"])
def test_programs_give_what_they_state(page, monkeypatch):
    rules = custom_function_call.functorch_table.copy()  # a page replaces one
    monkeypatch.setattr(custom_function_call, "functorch_table", rules)
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace: dict[str, object] = {}
    stated = 0
    for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(program, namespace)
        for match in STATED.finditer(program):
            value = eval(match["value"], {"tensor": torch.tensor})
            found = eval(match["call"], namespace)
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(found, value)
            else:
                assert found == value
            stated += 1
    assert stated >= 3


@pytest.mark.parametrize(("page", "at_least"), [("graph.md", 15), ("graph-fx.md", 5)])
def test_sessions_print_what_they_show(page, at_least):
    failed, attempted = doctest.testfile(str(DOCS / page), module_relative=False)
    assert attempted > at_least
    assert failed == 0


@pytest.mark.parametrize("module", [torchlayers.graph, gradient, script])
def test_docstrings_print_what_they_show(module):
    failed, attempted = doctest.testmod(module)
    assert attempted > 3
    assert failed == 0


def squeezed(text):
    """Without comments, and without the spaces that break lines."""
    return re.sub(r"\s+", "", re.sub(r"//.*", "", text))


LINES = [
    (page, line)
    for page in ("forward-mode.md", "reverse-mode.md")
    for block in re.findall(r"```cpp\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    for line in squeezed(block).split(";")[:-1]
]


@pytest.mark.parametrize(("page", "line"), LINES)
def test_a_line_of_a_rule_is_one(page, line):
    """As it stands in csrc/rules/, or in a list of names that share a line; … is anything."""
    rules = "".join(squeezed(path.read_text("utf-8")) for path in RULES.glob("*.cpp"))
    as_it_stands = re.escape(line).replace("…", ".*?") + ";"
    macro, name = re.search(r'(\w+)\("([\w.]+)"', line).groups()
    in_a_list = rf'"{re.escape(name)}",[^{{}}]*\}}\)\{{{macro}\(name\);'
    assert re.search(f"{as_it_stands}|{in_a_list}", rules)


def test_the_picture_is_of_the_graph_on_its_page():
    inputs = torch.ones(2, 3), torch.ones(3, 4)
    drawn = differentiate(make_fx(lambda x, w: (x @ w).tanh().sum(0))(*inputs)).to_svg()
    assert (DOCS / "graph-fx.svg").read_text() == drawn
