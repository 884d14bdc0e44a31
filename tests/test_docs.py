"""The programs in docs/ run, and give what their comments say."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parent.parent / "docs"
STATED = re.compile(r"^(?P<call>.+?)  # (?P<value>tensor\(.*\))$", re.MULTILINE)


@pytest.mark.parametrize("page", ["custom-functions.md", "forward-mode.md"])
def test_programs_give_what_they_state(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace: dict[str, object] = {}
    stated = 0
    for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(program, namespace)
        for match in STATED.finditer(program):
            value = eval(match["value"], {"tensor": torch.tensor})
            torch.testing.assert_close(eval(match["call"], namespace), value)
            stated += 1
    assert stated >= 3
