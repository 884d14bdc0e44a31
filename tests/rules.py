"""torchlayers' own rules, out of force for a while, and those that are followed."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torchlayers as tl

# Puts the rule of an operator, by name and overload, in force or out of it.
Switch = Callable[[str, str, bool], None]


@contextlib.contextmanager
def switched_off(switch: Switch, names: Iterable[str]) -> Iterator[None]:
    """Out of force inside the `with` block: rules by their operators' names, aten::mul.Tensor."""
    names = sorted(names)

    def put(on: bool) -> None:
        for name in names:
            operator, _, overload = name.partition(".")
            switch(operator, overload, on)

    try:
        put(False)
        yield
    finally:
        put(True)


@contextlib.contextmanager
def followed(kind: str, found: set[str]) -> Iterator[None]:
    """Adds to `found` the operators whose rules layers of this kind, "grad", follow."""
    with tl.trace() as events:
        yield
    found |= {e.op for e in events if e.step == "rule" and e.layer.startswith(kind)}
