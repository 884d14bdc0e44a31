"""Random programs that store what they compute, read values of tensors, and branch on them.

A Storing is Python source: a function of lines that read and write a state, called five times. It
runs in two worlds, with the function compiled in one of them.
"""

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import torchlayers as tl

# Lines of the function: `y` is a tensor of three numbers, `s` the state.
LINES = [
    "s.a = y",
    "s.a = s.a * 0.5 + y",
    "y = y + s.a",
    "s.items.append(y)",
    "s.items = s.items[-2:]",
    "s.items[0] = y * 2",
    "y = y + torch.stack(list(s.items)).mean(0)",
    "s.items.pop(0) if len(s.items) > 2 else None",
    "s.table['k'] = y * 2",
    "s.table['n'] = s.n",
    "s.table[s.n % 3] = y",
    "y = y + s.table['k']",
    "s.table = dict(s.table, k=y)",
    "s.pair = (y, s.n)",
    "y = y - s.pair[0] * s.pair[1]",
    "s.nested.inner = y + 1",
    "y = y * s.nested.inner",
    "s.nested = types.SimpleNamespace(inner=y)",
    "s.n += 1",
    "s.n = (s.n + 1) % 4",
    "y = y + s.n",
    "y = y * (2 if s.n % 2 else 1)",
    "s.total += y.sum().item()",
    "s.total = y.max().item()",
    "y = y + s.total",
    "s.log.append(y[0].item())",
    "s.log.append(len(s.log))",
    "y = y * y.abs().max().item()",
    "s.flag = bool(y.sum() > 0)",
    "y = -y if s.flag else y + 1",
    "y = y * 2 if y.sum() > 0 else y - 1",
    "s.n = s.n + 2 if y[0] > 0 else 0",
    "s.a = y if y[1] > y[0] else s.a + 1",
    "s.items.append(s.a) if y[2] > 0 else s.log.append(0)",
    "y = y / 2 if y.norm() > 1 else y",
    "y = [z for z in [y / 4, y / 2, y] if z.norm() > 0][0]",
    "s.k = torch.cat([s.k, y[None]])",
    "y = y + s.k.sum(0) / (1 + s.k.shape[0])",
    "s.k = s.k[-3:]",
    "s.room[s.n % 8] = y",
    "y = y + s.room[: s.n % 8].sum(0)",
    "s.buffer.add_(y)",
    "y = y + s.buffer",
    "y = torch.where(y > 0, y, y * 0.5)",
    "y = tl.grad(lambda z: (z * z).sum() if z[0] > 0 else z.sin().sum())(y)",
    "y = tl.grad(lambda z: (z * s.a).sin().sum())(y)",
    "y = tl.vmap(lambda z: z * s.n + 1)(y)",
    "y = tl.jvp(torch.sin, (y,), (s.a,))[1]",
    "y = tl.hessian(lambda z: (z * s.total).sum().cos())(y).sum(0)",
    "y = tl.vmap(tl.grad(lambda z: z.sin() * s.n))(y)",
    "assert torch.isfinite(y).all()",
    "s.count['calls'] = s.count.get('calls', 0) + 1",
]
FORMS = {
    "plain": "",
    "grad": "f = tl.grad(lambda x, f=f: f(x).sum())",
    "no_grad": "f = torch.no_grad()(f)",
    "jvp": "f = lambda x, f=f: tl.jvp(f, (x,), (x.cos(),))",
}
SETUP = """\
import types
import torch
import torchlayers as tl
torch.set_default_dtype(torch.float64)
s = types.SimpleNamespace(
    a=torch.ones(3), items=[torch.ones(3)], table={'k': torch.ones(3)}, pair=(torch.ones(3), 1),
    nested=types.SimpleNamespace(inner=torch.ones(3)), n=0, total=0.5, log=[], flag=False,
    k=torch.zeros(0, 3), room=torch.zeros(8, 3), buffer=torch.zeros(3), count={},
)
"""


@dataclasses.dataclass(frozen=True)
class Storing:
    lines: tuple[str, ...]
    form: str
    seed: int

    @property
    def source(self) -> str:
        body = "\n".join(f"    {line}" for line in ("y = x", *self.lines, "return y"))
        return f"{SETUP}def f(x):\n{body}\n{FORMS[self.form]}\n"

    @property
    def script(self) -> str:
        """A standalone script that reproduces it."""
        calls = f"for x in torch.randn(5, 3, generator=torch.Generator().manual_seed({self.seed})):"
        return f"{self.source}f = tl.compile(f, backend='replay')\n{calls}\n    print(f(x), s)\n"

    def run(self, compiled: Callable[[Any], Any]) -> list[Any]:
        """The results of five calls, each with the state after it."""
        before = torch.get_default_dtype()
        try:
            return self._run(compiled)
        finally:
            torch.set_default_dtype(before)

    def _run(self, compiled: Callable[[Any], Any]) -> list[Any]:
        world: dict[str, Any] = {"__name__": "world"}
        exec(self.source, world)
        f = compiled(world["f"])
        seen = []
        for x in torch.randn(5, 3, generator=torch.Generator().manual_seed(self.seed)):
            try:
                result: Any = f(x)
            except Exception as error:
                result = error
            seen.append((result, _copied(world["s"])))
        return seen


def _copied(value: Any) -> Any:
    """The state as it is now."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, types.SimpleNamespace):
        return {name: _copied(each) for name, each in vars(value).items()}
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    return value


@st.composite
def storings(draw: st.DrawFn) -> Storing:
    form = draw(st.sampled_from(sorted(FORMS)))
    lines = LINES
    if form in ("grad", "jvp"):  # a tensor of the transform's level would be left in the state
        lines = [line for line in LINES if not _stores(line)]
    chosen = draw(st.lists(st.sampled_from(lines), min_size=1, max_size=7))
    return Storing(tuple(chosen), form, draw(st.integers(0, 3)))


def _stores(line: str) -> bool:
    """Whether a line stores a tensor."""
    return line.startswith("s.") and not line.startswith(
        ("s.n", "s.total", "s.log", "s.flag", "s.count", "s.table['n']")
    )


def check_storing(storing: Storing) -> None:
    expected = storing.run(lambda f: f)
    results = storing.run(lambda f: tl.compile(f, backend="replay"))
    for number, (ours, eager) in enumerate(zip(results, expected, strict=True)):
        if not _is_moderate(eager):  # rounding decides where numbers grow so fast
            return
        if isinstance(eager[0], Exception):
            assert isinstance(ours[0], Exception), f"call {number}: {ours[0]}, not {eager[0]!r}"
        else:
            assert _is_same(ours[0], eager[0]), f"call {number}: {ours[0]}, not {eager[0]}"
        assert _is_same(ours[1], eager[1]), f"after call {number}: {ours[1]}, not {eager[1]}"


def _is_moderate(value: Any) -> bool:
    numbers = [leaf for leaf in tl.tree.leaves(value) if isinstance(leaf, Tensor | float)]
    return all(bool((torch.as_tensor(number).abs() < 1e6).all()) for number in numbers)


def _is_same(ours: Any, eager: Any) -> bool:
    if type(ours) is not type(eager):
        return False
    if isinstance(eager, Tensor):
        is_alike = ours.shape == eager.shape and ours.dtype == eager.dtype
        return is_alike and torch.allclose(ours, eager, 1e-4, 1e-5, equal_nan=True)
    if isinstance(eager, dict):
        return [*ours] == [*eager] and all(map(_is_same, ours.values(), eager.values()))
    if isinstance(eager, list | tuple):
        return len(ours) == len(eager) and all(map(_is_same, ours, eager))
    if isinstance(eager, float):
        return abs(ours - eager) <= 1e-5 + 1e-4 * abs(eager) or (ours != ours and eager != eager)
    return bool(ours == eager)
