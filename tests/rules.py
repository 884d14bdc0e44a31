"""torchlayers' own tables of rules: all of them, some out of force, and those that are followed.

Operators are named as aten::mul.Tensor.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator

import torchlayers as tl
from tests.torch_versions import in_this_torch
from torchlayers import _C


@dataclasses.dataclass(frozen=True)
class Table:
    operators: list[str]
    layer: str  # of which kind the layers are that follow its rules
    # Puts the rule of an operator, by name and overload, in force or out of it.
    switch: Callable[[str, str, bool], None] | None = None

    @contextlib.contextmanager
    def switched_off(self, operators: Iterable[str]) -> Iterator[None]:
        """The rules of these are out of force inside the `with` block."""
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
        """Adds to `found` the operators whose rules are followed."""
        with tl.trace() as events:
            yield
        found |= {e.op for e in events if e.step == "rule" and e.layer.startswith(self.layer)}


def of_aten(operators: Iterable[str]) -> list[str]:
    """Not those that take several processes, which tests/distributed has samples of, nor what a
    device without streams has not: tests/test_streams.py has that."""
    without = {"aten::record_stream"}
    return [name for name in operators if name.startswith("aten::") and name not in without]


TANGENTS = Table(in_this_torch(of_aten(_C.jvp_rules())), "jvp")
COTANGENTS = Table(in_this_torch(of_aten(_C.vjp_rules())), "grad", _C.switch_vjp_rule)
BATCHING = Table(in_this_torch(of_aten(_C.batching_rules())), "vmap", _C.switch_batching_rule)
