"""Names are plain: the words that say little become fewer, room by room."""

import pytest

from tests.repository import plain_names
from tests.repository.plain_names import bindings, room_of

ROOMS = sorted(
    {room_of(path.relative_to(plain_names.ROOT)) for path in plain_names.PACKAGE.rglob("*.py")}
)

SOURCE = """
import json as found
from torch import Tensor as fine

class Kept:
    own: int
    def of(self, each, *, fake=1, **given):
        self.held = [told for told in given]
        with open("f") as theirs:
            x, *made = theirs
        return self.made(each.found, own=x)

def read_bytes(path): ...
def _read(path): ...
async def _made_(): ...

match x:
    case [said, *_kept] | {"a": found}:
        pass
try:
    pass
except OSError as given:
    made: int = 1
"""


@pytest.fixture(scope="module")
def counts():
    return plain_names.counts()


@pytest.mark.parametrize("room", ROOMS)
def test_unclear_names_become_fewer(room, counts):
    limit = plain_names.limits().get(room, 0)
    assert counts[room] <= limit, "python -m tests.repository.plain_names lists them"


def test_every_way_to_bind_a_name_is_counted():
    unclear = sorted(each.name for each in bindings(SOURCE) if not each.is_plain)
    expected = (
        "found own of each given held told theirs made _read _made_ said _kept found given made"
    )
    assert unclear == sorted(expected.split())


def test_limits_only_fall(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_names, "LIMITS", tmp_path / "limits.txt")
    numbers = {"a": 3, "b": 2}
    monkeypatch.setattr(plain_names, "counts", lambda: plain_names.Counter(numbers))
    plain_names.write_limits()
    assert plain_names.limits() == numbers
    numbers.update(a=4, b=1)
    plain_names.write_limits()
    assert plain_names.limits() == {"a": 3, "b": 1}
