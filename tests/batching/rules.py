"""torchlayers' own batching rules: all of them, some out of force, and those that are followed."""

import contextlib
from collections.abc import Iterable, Iterator

import torchlayers as tl
from torchlayers import _C

RULES = sorted(_C.batching_rules())


@contextlib.contextmanager
def switched_off(names: Iterable[str]) -> Iterator[None]:
    """Out of force inside the `with` block: rules by their operators' names, aten::cat."""
    names = sorted(names)
    try:
        for name in names:
            _switch(name, False)
        yield
    finally:
        for name in names:
            _switch(name, True)


def _switch(name: str, on: bool) -> None:
    operator, _, overload = name.partition(".")
    _C.switch_batching_rule(operator, overload, on)


@contextlib.contextmanager
def followed(found: set[str]) -> Iterator[None]:
    """Adds to `found` the operators whose batching rules are followed."""
    with tl.trace() as events:
        yield
    found |= {e.op for e in events if e.step == "rule" and e.layer.startswith("vmap")}
