"""functional_call of random modules, compared with torch.func's: outputs, and the module's state
after."""

import random

import pytest
import torch
import torch.func
from torch import nn
from torch.nn.utils import parametrize

import torchlayers as tl

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


class Scaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("shift", torch.rand(4))
        self.register_buffer("hidden", torch.rand(4), persistent=False)
        self.register_parameter("nothing", None)

    def forward(self, x):
        return x * self.scale + self.shift - self.hidden


class Updating(Scaling):
    """Assigns to a buffer, and writes to another one."""

    def forward(self, x):
        self.shift = 0.5 * self.shift + x.detach().mean(0)
        self.hidden += 1
        return super().forward(x)


class WithGetattr(Scaling):
    def __getattr__(self, name):
        found = super().__getattr__(name)
        return 2 * found if name == "scale" else found


class WithSlots(Scaling):
    __slots__ = ("factor",)

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "factor", 3.0)

    def forward(self, x):
        return super().forward(x) * self.factor


class Shadowed(Scaling):
    """A property that shadows the parameter of the same name."""

    @property
    def scale(self):
        return self._parameters["scale"].tanh()

    def __init__(self):
        nn.Module.__init__(self)
        self._parameters["scale"] = nn.Parameter(torch.rand(4))
        self.register_buffer("shift", torch.rand(4))
        self.register_buffer("hidden", torch.rand(4))


class Summing(nn.Module):
    """A penalty over the tensors of its submodules, and a list that registers its modules."""

    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            x = part(x).tanh() + x
        return x + 0.01 * sum((p**2).sum() for p in self.parameters())


class Doubled(nn.Module):
    def forward(self, w):
        return 2 * w - w.mean()


def parametrized():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Doubled())
    return layer


LEAVES = [
    lambda: nn.Linear(4, 4),
    lambda: nn.Linear(4, 4, bias=False),
    lambda: nn.LayerNorm(4),
    lambda: nn.BatchNorm1d(4),
    lambda: nn.GRUCell(4, 4),
    Scaling,
    Updating,
    WithGetattr,
    WithSlots,
    Shadowed,
    parametrized,
]


def build(choose, depth):
    """A module, and all modules in it."""
    made = []

    def grow(depth):
        if depth == 0 or choose.random() < 0.3:
            module = choose.choice(LEAVES)()
        else:
            parts = [grow(depth - 1) for _ in range(choose.randint(1, 3))]
            module = choose.choice([Summing, lambda parts: nn.Sequential(*parts)])(parts)
        made.append(module)
        return module

    return grow(depth), made


def tie(choose, made):
    linear = [module for module in made if type(module) is nn.Linear]
    if len(linear) > 1 and choose.random() < 0.5:
        one, other = choose.sample(linear, 2)
        other.weight = one.weight


def share(choose, module, made):
    """Puts a module of the tree in a second place."""
    holders = [holder for holder in made if isinstance(holder, nn.Sequential)]
    if holders and choose.random() < 0.3:
        holder, leaf = choose.choice(holders), choose.choice(made)
        if holder not in set(leaf.modules()):
            holder.append(leaf)


def held(module):
    places = {}
    for name, part in module.named_modules():
        for kind in ("_parameters", "_buffers"):
            places |= {(name, kind, key): id(t) for key, t in getattr(part, kind).items()}
    return places


def run(call, module, given, **kwargs):
    given = {name: value.clone() for name, value in given.items()}
    before = held(module)
    result = call(module, given, (X,), **kwargs)
    return result, given, held(module) == before


def stands_twice(module):
    return len([*module.named_modules(remove_duplicate=False)]) > len([*module.modules()])


@pytest.mark.parametrize("seed", range(200))
def test_a_random_module(seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    module, made = build(choose, choose.randint(1, 3))
    tie(choose, made)
    share(choose, module, made)
    module.double()
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    chosen = [name for name in named if choose.random() < 0.8]
    given = {
        name: torch.rand_like(t) if t.dtype.is_floating_point else t + 1
        for name, t in ((name, named[name].detach()) for name in chosen)
    }
    shared = stands_twice(module)
    strict = len(chosen) == len(named)
    own = {name: t.detach().clone() for name, t in named.items()}

    result, updated, is_as_before = run(tl.functional_call, module, given, strict=strict)
    # A tensor that was not given is the module's own, and may have been assigned to.
    is_as_before |= any(isinstance(part, Updating) for part in made) and strict is False
    assert is_as_before
    assert all(isinstance(p, nn.Parameter) for p in module.parameters())
    restore(module, own)
    again, _, _ = run(tl.functional_call, module, given)  # now with the cached plan
    torch.testing.assert_close(again, result)
    restore(module, own)

    if not shared:  # torch.func's does not restore those
        theirs, their_updated, _ = run(torch.func.functional_call, module, given, strict=strict)
        torch.testing.assert_close(result, theirs)
        torch.testing.assert_close(updated, their_updated)
        restore(module, own)
    with torch.no_grad():  # the same by modifying the module itself
        for name, value in given.items():
            named[name].copy_(value)
    torch.testing.assert_close(module(X), result)


def restore(module, values):
    with torch.no_grad():
        for name, t in [*module.named_parameters(), *module.named_buffers()]:
            t.copy_(values[name])
