"""Without a private name of torch, the package imports, and README's examples work or say why."""

import datetime
import json
import random
import re
import subprocess
import sys

import pytest

from tests.repository import missing_names
from tests.repository.missing_names import BROKE, REFUSES, WORKS

# Names without which there are no layers at all; the import says so.
NEEDED = {
    "torch._C._dispatch_key_parse",
    "torch._C._functorch.TransformType",
    "torch._ops.HigherOrderOperator",
    "torch.utils._pytree.tree_flatten",
}
# Of what the eager example calls nothing is in these: it works without.
APART = re.compile(r"torch\.(_inductor|_dynamo|distributed|distributions|testing|fx)\b.*")


def _chosen(full: bool) -> list[str]:
    """All names, or a few that are drawn anew each day."""
    names = missing_names.names()
    day = datetime.date.today().isoformat()
    return names if full else sorted(random.Random(day).sample(names, 2))


@pytest.fixture(scope="module")
def outcomes(request):
    names = _chosen(request.config.getoption("--full"))
    print("without", *names)
    command = [sys.executable, "-W", "ignore", "-m", missing_names.__name__, *names]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.partition(" ") for line in run.stdout.splitlines()]
    assert [name for name, _, _ in lines] == names
    return {name: json.loads(steps) for name, _, steps in lines}


def test_nothing_breaks_without_a_name(outcomes):
    broken = {name: s for name, s in outcomes.items() if any(BROKE in r for r in s.values())}
    assert broken == {}


def test_the_import_works_without_all_but_a_few(outcomes):
    refused = {name for name, steps in outcomes.items() if steps["import"] == REFUSES}
    assert refused <= NEEDED


def test_the_eager_example_works_without_what_it_does_not_use(outcomes):
    apart = {name: steps for name, steps in outcomes.items() if APART.fullmatch(name)}
    assert {name: steps.get("eager") for name, steps in apart.items()} == dict.fromkeys(
        apart, WORKS
    )


def test_the_table_counts_each_name_once():
    table = missing_names.table(
        {
            "torch._a": {"import": WORKS, "eager": WORKS, "compiled": WORKS},
            "torch._b": {"import": WORKS, "eager": WORKS, "compiled": REFUSES},
            "torch._c": {"import": REFUSES},
            "torch._d": {"import": f"{BROKE}: TypeError: no"},
        }
    )
    assert re.findall(r"\| (\d+) \|", table) == ["1", "1", "1", "1"]
    assert "`_b`" in table and "`_c`" in table and "`_a`" not in table
