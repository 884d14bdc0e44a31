"""torchlayers' own rule tables: list them, switch rules off, and see which ones are applied.

Operators are named as aten::mul.Tensor.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator

from tests.support.expected_failures import in_this_torch
from tests.support.traced_steps import traced_steps
from torchlayers import _C


@dataclasses.dataclass(frozen=True)
class Table:
    operators: list[str]
    layer: str  # the kind of layer that applies these rules
    # Switches the rule of an operator, given by name and overload, on or off.
    switch: Callable[[str, str, bool], None] | None = None

    @contextlib.contextmanager
    def switched_off(self, operators: Iterable[str]) -> Iterator[None]:
        """Switches these operators' rules off inside the `with` block."""
        operators = sorted(operators)
        assert self.switch is not None

        def put(on: bool) -> None:
            for operator in operators:
                name, _, overload = operator.partition(".")
                self.switch(name, overload, on)

        try:
            put(False)
            yield
        finally:
            put(True)

    @contextlib.contextmanager
    def followed(self, found: set[str]) -> Iterator[None]:
        """Adds to `found` the operators whose rules are applied."""
        with traced_steps() as events:
            yield
        found |= {e.op for e in events if e.step == "rule" and e.layer.startswith(self.layer)}


def of_aten(operators: Iterable[str]) -> list[str]:
    """ATen operators only, without collectives (sampled in tests/distributed) and without what
    needs a device with streams (tests/core/test_streams.py)."""
    without = {"aten::record_stream"}
    return [name for name in operators if name.startswith("aten::") and name not in without]


TANGENTS = Table(in_this_torch(of_aten(_C.jvp_rules())), "jvp")
COTANGENTS = Table(in_this_torch(of_aten(_C.vjp_rules())), "grad", _C.switch_vjp_rule)
BATCHING = Table(in_this_torch(of_aten(_C.batching_rules())), "vmap", _C.switch_batching_rule)
