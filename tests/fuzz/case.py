"""A program under a stack of transforms, as source and as a callable."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

import torchlayers
from tests.fuzz.functions import FUNCTIONS, is_called
from tests.fuzz.shadow import Shadow
from tests.fuzz.values import APART, SPARSE, Value, sparse

JACOBIANS = ("jacrev", "jacfwd", "hessian")
FORWARD = ("jvp", "linearize", "jacfwd", "hessian")
# Transforms that do not change a function's values and derivatives.
IDENTITIES = ("functionalize", "checkpoint", "torch_checkpoint")
# Transforms that are layers in Python.
LAYERS = ("layer", "jet", "laplacian")
KINDS = ("grad", "vjp", "jvp", "linearize", "vmap", *JACOBIANS, *IDENTITIES)


@dataclasses.dataclass(frozen=True)
class Level:
    """A transform in a stack: one of KINDS, from the library with this name."""

    kind: str
    library: str = "tl"
    in_dim: int = 0
    out_dim: int = 0
    # functionalize: whether views are removed too.
    remove_views: bool = False
    # Options of vmap.
    randomness: str = "error"


@dataclasses.dataclass(frozen=True)
class Case:
    """A program under a stack of levels, outermost first.

    The program is a function of the variables of all levels (x0 is the innermost level's), of a
    constant, K, and of APART.
    """

    levels: tuple[Level, ...]
    x: Value
    constant: Value
    program: tuple[str, ...]

    @property
    def source(self) -> str:
        """f0, a function of x0, and the functions that it calls; the last is the program."""
        names = [f"x{i}" for i in range(len(self.levels) + 1)]
        lines = [source for name, source in FUNCTIONS.items() if is_called(name, str(self.program))]
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

        Except at special values, all use ``x`` inside as well: a constant to this level, a variable
        to outer levels.
        """
        # The mean of an empty tensor is nan.
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
        elif level.kind == "linearize":
            yield f"value, push_forward = {called}({function}, {x})"
            yield f"return value + push_forward({direction})"
        elif level.kind == "vmap":
            dims = f"in_dims={level.in_dim}, out_dims={level.out_dim}"
            if level.randomness != "error":
                dims += f", randomness={level.randomness!r}"
            if level.randomness == "keyed":
                dims += ", key=KEY"
            yield f"return {called}({function}, {dims})({x})"
        elif level.kind == "functionalize":
            remove = ", remove='mutations_and_views'" if level.remove_views else ""
            yield f"return {called}({function}{remove})({x})"
        elif level.kind == "checkpoint":
            yield f"return {called}({function})({x})"
        elif level.kind == "torch_checkpoint" and level.library == "tl":
            options = "use_reentrant=False"
            if any(level.randomness == "keyed" for level in self.levels):
                options += ", context_fn=tl.recomputation"
            yield f"return torch.utils.checkpoint.checkpoint({function}, {x}, {options})"
        elif level.kind == "torch_checkpoint":
            yield f"return ({function})({x})"
        elif level.kind == "jet":
            curve = f"({x},), ([{direction}, {x}.cos()],)"
            yield f"value, (first, second) = {called}({function}, {curve})"
            yield "return value + first + second"
        elif level.kind == "laplacian":
            yield f"return {called}({function})({x})"
        elif level.kind == "layer":
            yield f"return {'Shadow()' if level.library == 'tl' else ''}({function})({x})"
        else:
            # All rows, each with a different weight.
            yield f"jacobian = {called}({scalar if level.kind == 'hessian' else function})({x})"
            yield f"rows = jacobian[None].flatten(0, jacobian.dim() - {x}.dim())"
            yield "ramp = torch.linspace(0.5, 1, len(rows), dtype=torch.float64).to(rows.dtype)"
            yield "return torch.tensordot(ramp, rows, 1)"

    def called(self, *libraries: str) -> "Case":
        """The same case with transforms of these libraries, outermost first; the last is repeated.

        With torch.func alone, out_dims are zero: it is wrong for some others.
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
        names = {"torch": torch, "APART": APART, "K": self.constant.tensor()}
        names |= {"KEY": torchlayers.random.key(0), **sparse(), **libraries}
        names["Shadow"] = Shadow
        names.setdefault("tl", next(iter(libraries.values())))  # for transforms inside the program
        exec(compile(self.source, "<random program>", "exec"), names)
        function: Callable[[Tensor], Tensor] = names["f0"]
        return function

    def run(self, **libraries: Any) -> Tensor:
        """The result of f0, with the same random draws each time."""
        torch.manual_seed(0)
        return self.function(**libraries)(self.x.tensor())

    @property
    def script(self) -> str:
        """The same as a standalone script."""
        lines = [
            "import torch",
            "import torch.func as func",
            "import torch.utils.checkpoint",
            "import torchlayers as tl",
            "from math import inf, nan",
            "torch.manual_seed(0)",
            "KEY = tl.random.key(0)",
            f"APART = torch.tensor({APART.tolist()}, dtype=torch.float64)",
            *(["from tests.fuzz.shadow import Shadow"] if "Shadow" in self.source else ()),
            *(SPARSE.splitlines() if re.search(r"COO|CSR", str(self.program)) else ()),
            *self.constant.lines("K"),
            *self.x.lines("x"),
            self.source,
            "print(f0(x))",
        ]
        return "\n".join(["", *lines, ""])
