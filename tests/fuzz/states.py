"""Programs that read state which changes between their calls, and change some of it themselves.

A History is Python source, too: setup of a world, a function that reads it, and steps that change
it or call the function. It runs in two worlds, with the function compiled in one of them.
"""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import torchlayers as tl


@dataclasses.dataclass(frozen=True)
class Place:
    """State that a function reads: its setup, the term computed from it, and the changes to it."""

    made: str
    term: str
    changes: str  # one per line
    told: str = "None"  # the part that the function changes, to compare the worlds by


PLACES = [
    Place(
        "factor = 1.0",
        "x * factor",
        """\
factor = 2.0
factor = 1.0
factor = 1
factor = True
factor = -0.0
factor = float('nan')
""",
    ),
    Place(
        "settings = types.SimpleNamespace(gain=1.0)",
        "x * getattr(settings, 'gain', 4.0)",
        """\
settings.gain = 2.0
settings.gain = 1.0
settings = types.SimpleNamespace(gain=3.0)
vars(settings).pop('gain', None)
""",
    ),
    Place(
        """\
class Shifted:
    shift = 1.0
class Child(Shifted): pass
shifted = Child()
""",
        "x + shifted.shift",
        """\
Shifted.shift = 2.0
Child.shift = 3.0
shifted.shift = 4.0
Shifted.shift = 1.0
shifted = Child()
shifted.__class__ = Shifted
vars(shifted).clear()
""",
    ),
    Place(
        """\
class Doubled:
    def __init__(self): self.half = 1.0
    @property
    def whole(self): return self.half * 2
doubled = Doubled()
""",
        "x * doubled.whole",
        """\
doubled.half = 2.0
doubled.half = 1.0
Doubled.whole = property(lambda self: self.half * 3)
""",
    ),
    Place(
        """\
class Slotted:
    __slots__ = ('scale',)
slotted = Slotted()
slotted.scale = 1.0
""",
        "x * slotted.scale",
        """\
slotted.scale = 2.0
slotted.scale = 1.0
""",
    ),
    Place(
        """\
class Lazy:
    def __getattr__(self, name): return table_of_lazy[name]
table_of_lazy = {'size': 1.0}
lazy = Lazy()
""",
        "x * lazy.size",
        """\
table_of_lazy['size'] = 2.0
lazy.size = 3.0
vars(lazy).clear()
""",
    ),
    Place(
        "scales = [1.0, 2.0]",
        "sum(x * scale for scale in scales)",
        """\
scales.append(3.0)
scales[0] = 4.0
scales.reverse()
del scales[1:]
scales = [1.0, 2.0]
""",
    ),
    Place(
        "weights = [torch.ones(3)]",
        "torch.stack([x * weight for weight in weights]).sum(0)",
        """\
weights.append(torch.full((3,), 2.0))
weights[0].mul_(2)
weights[0] = torch.full((3,), 3.0)
del weights[1:]
weights[0] = torch.ones((), dtype=torch.float64)
""",
    ),
    Place(
        "table = {'a': 1.0}",
        "x * table.get('a', 5.0) + len(table)",
        """\
table['a'] = 2.0
table.pop('a', None)
table['b'] = 1.0
table.pop('b', None)
table = {'a': 1.0}
""",
    ),
    Place(
        "ordered = {'a': 1.0, 'b': 2.0}",
        "functools.reduce(lambda y, item: y * item[1] + ord(item[0]), ordered.items(), x)",
        """\
ordered['a'] = ordered.pop('a')
ordered['b'] = 3.0
ordered['c'] = 1.0
ordered.pop('c', None)
""",
    ),
    Place(
        "flags = {'on'}",
        "x.cos() if 'on' in flags else x.sin()",
        """\
flags.add('on')
flags.discard('on')
flags = {'on', 'off'}
""",
    ),
    Place(
        "recent = collections.deque([1.0], maxlen=2)",
        "x * recent[-1] + len(recent)",
        """\
recent.append(2.0)
recent.append(1.0)
recent.clear(); recent.append(3.0)
""",
    ),
    Place(
        "kind = ('sum', 1.0)",
        "x.sum() * kind[1] if kind[0] == 'sum' else x.mean()",
        """\
kind = ('mean', 1.0)
kind = ('sum', 2.0)
kind = ('sum', 1.0)
""",
    ),
    Place(
        "def helped(x, by=2.0, *, and_by=1.0): return x * by + and_by",
        "helped(x)",
        """\
helped.__defaults__ = (3.0,)
helped.__defaults__ = (2.0,)
helped.__kwdefaults__ = {'and_by': 2.0}
helped.__code__ = (lambda x, by=2.0, *, and_by=1.0: x - by).__code__
def helped(x): return x * 7
""",
    ),
    Place(
        """\
def enclosing():
    inner = 1.0
    def read(x): return x * inner
    def write(value):
        nonlocal inner
        inner = value
    return read, write
read, write = enclosing()
""",
        "read(x)",
        """\
write(2.0)
write(1.0)
read, write = enclosing()
""",
    ),
    Place(
        "partial = functools.partial(torch.mul, other=2.0)",
        "partial(x)",
        """\
partial = functools.partial(torch.mul, other=3.0)
partial.keywords['other'] = 4.0
partial.keywords['other'] = 2.0
""",
    ),
    Place(
        """\
class Called:
    by = 1.0
    def __call__(self, x): return x * self.by
    def times(self, x): return x + self.by
called = Called()
""",
        "called(x) + called.times(x)",
        """\
called.by = 2.0
Called.by = 3.0
Called.__call__ = lambda self, x: x
called.times = lambda x: x * 3
vars(called).clear()
""",
    ),
    Place(
        "weight = torch.ones(3)",
        "x * weight",
        """\
weight.add_(1)
weight = torch.full((3,), 2.0)
weight = torch.ones(1)
weight.data = torch.full((3,), 3.0)
weight.requires_grad_()
weight = torch.ones(3, dtype=torch.float64)
""",
    ),
    Place(
        "net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(1.0)).eval()",
        "net(x.expand(2, 3)).sum(0)",
        """\
net.train()
net.eval()
net[2].p = 0.0
net[2].p = 1.0
net[0] = nn.Linear(3, 3, bias=False)
net[0].weight = nn.Parameter(torch.ones(3, 3))
net[1].eps = 0.5
net[1].running_mean = torch.ones(3)
net[1].running_mean.add_(1)
net.append(nn.Tanh())
net.double().float()
net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)
net[0].register_forward_hook(lambda m, args, y: y * 2)
net[0]._forward_hooks.clear()
net[0].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
net[0].forward = lambda x: x * 2
vars(net[0]).pop('forward', None)
net[0].weight.requires_grad_(False)
""",
    ),
    Place(
        """\
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor, self.act = 1.0, torch.tanh
        self.list = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.dict = nn.ModuleDict({'a': nn.Tanh()})
    def forward(self, x):
        for p in self.list: x = x * p
        for m in self.dict.values(): x = m(x)
        return self.act(x) * self.factor
own = Own()
""",
        "own(x)",
        """\
own.factor = 2.0
own.factor = 1.0
own.act = torch.sin
own.act = torch.tanh
own.list.append(nn.Parameter(torch.full((3,), 2.0)))
own.list[0] = nn.Parameter(torch.full((3,), 3.0))
own.dict['b'] = nn.Softplus()
own.dict['a'] = nn.Sigmoid()
Own.forward = lambda self, x: x * self.factor
own = Own()
""",
    ),
    Place(
        """\
rate = torch.tensor(1.0)
rates = [rate]
""",
        "x * rates[0]",
        """\
rate.fill_(2.0)
rates[0] = torch.tensor(3.0)
rates.insert(0, torch.tensor(4.0))
rates[0] = 5.0
rates[0] = rate
""",
    ),
    Place(
        """\
class Counter:
    count = 0
counter = Counter()
def counted(x):
    counter.count += 1
    return x * counter.count
""",
        "counted(x)",
        """\
counter.count = 0
counter = Counter()
Counter.count = 5
""",
        told="counter.count",
    ),
    Place(
        """\
log = []
def logged(x):
    log.append(len(log))
    return x + len(log)
""",
        "logged(x)",
        """\
log.clear()
log = []
""",
        told="log",
    ),
    Place(
        """\
last = None
def marked(x):
    global last
    last = 'called'
    return x * 2
""",
        "marked(x)",
        """\
last = None
last = 1
""",
        told="last",
    ),
    Place(
        """\
buffer = torch.zeros(3)
def summed(x):
    with torch.no_grad():
        buffer.add_(1)
    return x + buffer
""",
        "summed(x)",
        """\
buffer.zero_()
buffer = torch.zeros(3)
""",
        told="buffer.tolist()",
    ),
    Place(
        """\
config = types.ModuleType("config")
config.rates = {"first": [1.0, 2.0]}
config.names = ("first",)
""",
        "x * config.rates[config.names[0]][-1]",
        """\
config.rates["first"].append(3.0)
config.rates["first"][-1] = 4.0
config.rates["first"] = [1.0, 2.0]
config.rates["second"] = [5.0]
config.names = ("second", "first")
config.names = ("first",)
config.rates = {"first": [6.0], "second": [7.0]}
""",
    ),
    Place(
        """\
@functools.lru_cache
def looked_up(name): return table_of_cached[name]
table_of_cached = {"a": 1.0}
name_of_cached = "a"
""",
        "x * looked_up(name_of_cached)",
        """\
table_of_cached["a"] = 2.0
looked_up.cache_clear()
table_of_cached["b"] = 3.0; name_of_cached = "b"
name_of_cached = "a"
""",
    ),
    Place(
        """\
def decorated(f):
    @functools.wraps(f)
    def around(x): return f(x) * outer_gain
    return around
outer_gain = inner_gain = 1.0
@decorated
def wrapped(x): return x + inner_gain
""",
        "wrapped(x)",
        """\
outer_gain = 2.0
inner_gain = 2.0
outer_gain = inner_gain = 1.0
wrapped = wrapped.__wrapped__
""",
    ),
    Place(
        """\
class Kinds(enum.Enum):
    SUM = 1
    MEAN = 2
@dataclasses.dataclass
class Options:
    kind: Kinds = Kinds.SUM
    by: tuple = (1.0, 2.0)
options = Options()
""",
        "x.sum() * options.by[0] if options.kind is Kinds.SUM else x.mean() - options.by[-1]",
        """\
options.kind = Kinds.MEAN
options.kind = Kinds.SUM
options = dataclasses.replace(options, by=(3.0,))
options.by = (1.0, 4.0)
options = Options()
""",
    ),
    Place(
        """\
class Table:
    def __init__(self): self.rows = [[1.0], [2.0]]
    def __getitem__(self, i): return self.rows[i][0]
    def __len__(self): return len(self.rows)
    @staticmethod
    def base(): return 1.0
    @classmethod
    def made(cls): return cls()
rows = Table()
""",
        "x * rows[0] + len(rows) + rows.base() * bool(rows)",
        """\
rows.rows[0][0] = 3.0
rows.rows.append([4.0])
rows.rows.reverse()
rows = Table.made()
Table.base = staticmethod(lambda: 2.0)
rows.rows.clear(); rows.rows.append([1.0])
Table.__len__ = lambda self: 7
Table.__bool__ = lambda self: False
""",
    ),
    Place(
        """\
stack = [[1.0]]
@contextlib.contextmanager
def scaling(by):
    stack.append([by])
    yield
    stack.pop()
def scaled(x):
    with scaling(stack[0][0] * 2):
        return x * stack[-1][0]
""",
        "scaled(x)",
        """\
stack[0][0] = 2.0
stack[0] = [3.0]
stack = [[1.0]]
stack.append([9.0])
""",
    ),
    Place(
        """\
class Cached:
    by = 2.0
    @functools.cached_property
    def kept(self): return self.by * 2
    def made_once(self):
        if not hasattr(self, "made"): self.made = self.by * 3
        return self.made
cached = Cached()
""",
        "x * cached.kept + cached.made_once()",
        """\
cached.by = 3.0
vars(cached).pop("kept", None)
vars(cached).pop("made", None)
cached = Cached()
Cached.by = 4.0
""",
        told="sorted(vars(cached).items())",
    ),
    Place(
        """\
optimized = nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([optimized], lr=0.5)
def stepped(x):
    optimizer.zero_grad()
    with torch.enable_grad(): loss = (optimized * x.detach()).sum()
    optimized.grad = torch.ones_like(optimized) * loss.detach()
    optimizer.step()
    return optimized.detach() * 2
""",
        "stepped(x)",
        """\
optimizer.param_groups[0]["lr"] = 0.1
optimizer.param_groups[0]["momentum"] = 0.9
optimizer.param_groups[0]["weight_decay"] = 0.5
optimized.data = torch.zeros(3)
optimized.grad = None
""",
        told="optimized.tolist()",
    ),
]

# Ways in which the function uses the sum of its terms.
FORMS = {
    "plain": "def f(x): return total(x)",
    "grad": "f = tl.grad(lambda x: total(x).sum())",
    "jvp": "def f(x): return tl.jvp(total, (x,), (torch.ones_like(x),))",
    "vmap": "def f(x): return tl.vmap(lambda y: total(x * y))(torch.arange(1.0, 3.0))",
    "hessian": "f = tl.hessian(lambda x: total(x).sum().sin())",
}
AROUND = {
    "": "y = f(x)",
    "no_grad": "with torch.no_grad(): y = f(x)",
    "inference_mode": "with torch.inference_mode(): y = f(x)",
    "autocast": "with torch.autocast('cpu', torch.bfloat16): y = f(x)",
    "requires_grad": "y = f(x.clone().requires_grad_())",
    "double": "y = f(x.double())",
    "other_shape": "y = f(x[None])",
}
IMPORTS = """\
import collections, contextlib, dataclasses, enum, functools, types
import torch
import torchlayers as tl
from torch import nn
torch.manual_seed(0)
"""


@dataclasses.dataclass(frozen=True)
class History:
    places: tuple[int, ...]
    form: str
    steps: tuple[tuple[str, bool], ...]  # the source, and whether another thread runs it

    @property
    def made(self) -> str:
        places = [PLACES[each] for each in self.places]
        terms = " + ".join(f"({place.term})" for place in places)
        told = ", ".join(place.told for place in places)
        parts = [
            IMPORTS,
            *(place.made for place in places),
            f"def total(x): return {terms}",
            FORMS[self.form],
            f"def told(): return {told},",
            "x = torch.arange(1.0, 4.0) / 4",
        ]
        return "\n".join(parts)

    @property
    def script(self) -> str:
        """A standalone script that reproduces it, with the line that compiles."""
        steps = (f"{step}  # on another thread" if other else step for step, other in self.steps)
        return "\n".join([self.made, "f = tl.compile(f, backend='replay')", *steps])

    def run(self, compiled: Callable[[Any], Any]) -> list[Any]:
        """The results of each call, and the Python state that it changed."""
        world: dict[str, Any] = {"__name__": "world"}
        exec(self.made, world)
        world["f"] = compiled(world["f"])
        seen: list[Any] = []
        for step, on_other_thread in self.steps:
            world.pop("y", None)
            run: Any = threading.Thread(target=_attempt, args=(step, world))
            if on_other_thread:
                run.start()
                run.join()
            else:
                run.run()
            if step in AROUND.values():
                seen.append((world["y"], repr(world["told"]())))
        return seen


def _attempt(step: str, world: dict[str, Any]) -> None:
    try:
        exec(step, world)
    except Exception as error:
        world["y"] = error


@st.composite
def histories(draw: st.DrawFn) -> History:
    places = draw(st.lists(st.integers(0, len(PLACES) - 1), min_size=1, max_size=3, unique=True))
    changes = [line for place in places for line in PLACES[place].changes.splitlines()]
    call = st.one_of(st.just(AROUND[""]), st.sampled_from(sorted(AROUND.values())))
    step = st.one_of(call, st.sampled_from(changes), st.sampled_from(changes))
    on_other_thread = st.integers(0, 7).map(lambda n: n == 0)
    steps = draw(st.lists(st.tuples(step, on_other_thread), min_size=2, max_size=14))
    form = draw(st.sampled_from(sorted(FORMS)))
    return History(tuple(places), form, ((AROUND[""], False), *steps, (AROUND[""], False)))


def check_history(history: History, backend: str = "replay") -> None:
    expected = history.run(lambda f: f)
    results = history.run(lambda f: tl.compile(f, backend=backend, check=False))
    for number, (ours, eager) in enumerate(zip(results, expected, strict=True)):
        assert _is_same(ours[0], eager[0]), f"call {number}: {ours[0]}\n{eager[0]}"
        if not isinstance(eager[0], Exception):
            assert ours[1] == eager[1], f"after call {number}: {ours[1]}, not {eager[1]}"


def _is_same(ours: Any, eager: Any) -> bool:
    if isinstance(eager, Exception):
        return isinstance(ours, Exception)
    pairs = zip(tl.tree.leaves(ours), tl.tree.leaves(eager), strict=True)
    return all(isinstance(a, Tensor) and _is_close(a, b) for a, b in pairs)


def _is_close(ours: Tensor, eager: Tensor) -> bool:
    if ours.dtype != eager.dtype or ours.requires_grad != eager.requires_grad:
        return False
    tolerance = 1e-2 if ours.dtype is torch.bfloat16 else 1e-4
    return torch.allclose(ours.detach(), eager.detach(), tolerance, 1e-5, equal_nan=True)
