"""A program under a stack of transforms, as source and as what it computes."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.programs.functions import FUNCTIONS
from tests.programs.values import APART, SPARSE, Value, sparse

JACOBIANS = ("jacrev", "jacfwd", "hessian")
FORWARD = ("jvp", "jacfwd", "hessian")
KINDS = ("grad", "vjp", "jvp", "vmap", *JACOBIANS, "functionalize")


@dataclasses.dataclass(frozen=True)
class Level:
    """A transform in a stack: one of KINDS, of the library that goes by this name."""

    kind: str
    library: str = "tl"
    in_dim: int = 0
    out_dim: int = 0


@dataclasses.dataclass(frozen=True)
class Case:
    """A program under a stack of levels, outermost first.

    The program is a function of the variables of all levels, x0 to that of the innermost one; of
    a constant, K; and of APART.
    """

    levels: tuple[Level, ...]
    x: Value
    constant: Value
    program: tuple[str, ...]

    @property
    def source(self) -> str:
        """f0, a function of x0, and the functions that it calls; the last is the program."""
        names = [f"x{i}" for i in range(len(self.levels) + 1)]
        lines = [
            source for name, source in FUNCTIONS.items() if f"{name}.apply" in str(self.program)
        ]
        for i, level in enumerate(self.levels):
            inner = f"f{i + 1}({', '.join(names[: i + 2])})"
            lines.append(f"def f{i}({', '.join(names[: i + 1])}):")
            lines += [
                f"    {line}" for line in self.transform(level, names[i], inner, names[i + 1])
            ]
        lines.append(f"def f{len(self.levels)}({', '.join(names)}):")
        lines += [f"    {line}" for line in self.program]
        return "\n".join(lines)

    def transform(self, level: Level, x: str, inner: str, y: str) -> Iterator[str]:
        """The lines that transform ``inner``, a function of ``y``, at ``x``.

        Except at special values, all use ``x`` inside as well: a constant to this level, a
        variable to those around it.
        """
        # Where there are no elements, their mean is nan.
        mean = "sum()" if 0 in self.x.shape else "mean()"
        real = ".real" if self.x.dtype.startswith("complex") else ""
        weight = f"{x}.{mean}{real}.cos()"
        function = f"lambda {y}: {inner} * {weight}"
        scalar = f"lambda {y}: ({inner} * {weight}).sum(){real}"
        direction, cotangent, added = f"{x}.sin()", weight, f" + value.{mean}"
        if self.x.special:
            function, scalar = f"lambda {y}: {inner}", f"lambda {y}: {inner}.sum()"
            direction, cotangent, added = f"torch.full_like({x}, 0.7)", "torch.tensor(0.7)", ""
        called = f"{level.library}.{level.kind}"
        if level.kind == "grad":
            yield f"return {called}({scalar})({x})"
        elif level.kind == "vjp":
            yield f"value, pull_back = {called}({function}, {x})"
            yield f"cotangent = ({cotangent}).to(value.dtype).expand(value.shape)"
            yield f"return pull_back(cotangent)[0]{added}"
        elif level.kind == "jvp":
            yield f"value, tangent = {called}({function}, ({x},), ({direction},))"
            yield (
                "return torch.stack((value, tangent))"
                if self.x.special
                else ("return value + tangent")
            )
        elif level.kind == "vmap":
            dims = f"in_dims={level.in_dim}, out_dims={level.out_dim}"
            yield f"return {called}({function}, {dims})({x})"
        elif level.kind == "functionalize":
            yield f"return {called}({function})({x})"
        else:
            # All rows, each with a weight of its own.
            yield f"jacobian = {called}({scalar if level.kind == 'hessian' else function})({x})"
            yield f"rows = jacobian[None].flatten(0, jacobian.dim() - {x}.dim())"
            yield "ramp = torch.linspace(0.5, 1, len(rows), dtype=torch.float64).to(rows.dtype)"
            yield "return torch.tensordot(ramp, rows, 1)"

    def called(self, *libraries: str) -> "Case":
        """The same with the transforms of these libraries, from outside in; the last is repeated.

        In torch.func alone, out_dims are zero: it errs for some others.
        """
        libraries += libraries[-1:] * len(self.levels)
        levels = [
            dataclasses.replace(level, library=library)
            for level, library in zip(self.levels, libraries, strict=False)
        ]
        if libraries[0] == "func":
            levels = [dataclasses.replace(level, out_dim=0) for level in levels]
        return dataclasses.replace(self, levels=tuple(levels))

    def function(self, **libraries: Any) -> Callable[[Tensor], Tensor]:
        """f0, with these libraries under the names that the levels use."""
        names = {
            "torch": torch,
            "APART": APART,
            "K": self.constant.tensor(),
            **sparse(),
            **libraries,
        }
        names.setdefault("tl", next(iter(libraries.values())))  # for what transforms inside
        exec(compile(self.source, "<random program>", "exec"), names)
        function: Callable[[Tensor], Tensor] = names["f0"]
        return function

    def run(self, **libraries: Any) -> Tensor:
        """f0's result."""
        return self.function(**libraries)(self.x.tensor())

    @property
    def script(self) -> str:
        """The same as a file that can be run by itself."""
        lines = [
            "import torch",
            "import torch.func as func",
            "import torchlayers as tl",
            "from math import inf, nan",
            f"APART = torch.tensor({APART.tolist()}, dtype=torch.float64)",
            *(SPARSE.splitlines() if re.search(r"COO|CSR", str(self.program)) else ()),
            *self.constant.lines("K"),
            *self.x.lines("x"),
            self.source,
            "print(f0(x))",
        ]
        return "\n".join(["", *lines, ""])
