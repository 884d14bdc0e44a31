"""What csrc/rules says of operators beside their derivatives, on calls that op_db makes.

Each fact is checked by calling the operator: a fact that does not hold is found, and so is one
about an operator that is called nowhere.
"""

import contextlib
import warnings
from collections import defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torchlayers as tl
from tests.rules.forward.samples import SAMPLES as FORWARD
from tests.rules.forward.samples import values
from tests.rules.opinfo.cases import cases, ops
from tests.rules.reverse.samples import OWN as REVERSE
from tests.support.rule_tables import COTANGENTS, TANGENTS
from torchlayers import _C
from torchlayers.transforms.layers.rule_table import facts

A = torch.ops.aten
# Decomposed by torch before any layer sees it.
UNREACHED = {A.selu.default}
# op_db's have more elements.
OWN = [(lambda x, y: A.slice_scatter(x, y, 1, 0, 2), [values(2, 3), values(2, 2)])]
CALLS, ELEMENTS = 3, 800
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]


class Call(NamedTuple):
    """A call of an operator, as a function of its float64 tensors."""

    op: Any
    arguments: tuple[tuple[Any, ...], dict[str, Any]]

    @property
    def inputs(self):
        return [x for x in pytree.tree_leaves(self.arguments) if is_real(x)]

    def filled(self, *tensors):
        given = iter(tensors)
        return pytree.tree_map(lambda x: next(given) if is_real(x) else x, self.arguments)

    def __call__(self, *tensors):
        args, kwargs = self.filled(*tensors)
        torch.manual_seed(0)
        leaves = pytree.tree_leaves(self.op(*args, **kwargs))
        return [y for y in leaves if isinstance(y, Tensor) and has_derivative(y)]


def is_real(x):
    return isinstance(x, Tensor) and x.dtype == torch.float64 and x.layout == torch.strided


def has_derivative(y):
    return y.is_floating_point() or y.is_complex()


class Calls(TorchDispatchMode):
    """Collects the first calls of each operator on few elements."""

    def __init__(self):
        super().__init__()
        self.calls = defaultdict(list)

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = self.calls[op]
        leaves = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        is_small = sum(x.numel() for x in leaves) <= ELEMENTS and any(map(is_real, leaves))
        if is_small and len(found) < CALLS and not op._schema.is_mutable:
            copies = pytree.tree_map(copy_of, (args, kwargs))
            found.append(Call(op, copies))
        return op(*args, **kwargs)


def copy_of(x):
    return x.detach().clone() if isinstance(x, Tensor) else x


def numbers(seed, *inputs):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in inputs]


@pytest.fixture(scope="module")
def calls():
    """Calls of each operator with a statement in csrc/rules, from op_db and its gradients."""
    with warnings.catch_warnings(), Calls() as recorder:
        warnings.simplefilter("ignore")
        for op in ops(torch.float64):
            for case in cases(op, torch.float64, 6):
                inputs = [x.requires_grad_() for x in case.inputs]
                with contextlib.suppress(Exception):
                    total = case.scalar(*inputs)
                    torch.autograd.grad(total, inputs, allow_unused=True)
        for f, inputs in [*FORWARD.values(), *REVERSE.values(), *OWN]:
            with contextlib.suppress(Exception):
                f(*inputs)
    return recorder.calls


def stating(fact):
    """Operators about which csrc/rules states the fact, that this torch has."""
    found = []
    for name in {*TANGENTS.operators, *COTANGENTS.operators}:
        with contextlib.suppress(AttributeError, RuntimeError):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(A, packet), overload or "default")
            if facts(op)[fact]:
                found.append(op)
    return found


def holds(call, fact):
    inputs = call.inputs
    try:
        call(*inputs)
    except Exception:  # on copies, whose memory is another
        return True
    return CHECKS[fact](call, inputs)


def gathers(call, inputs):
    """From tensors of positive integers."""
    start, given = 1, []
    for x in inputs:
        given.append(torch.arange(start, start + x.numel(), dtype=x.dtype).view(x.shape))
        start += x.numel()
    others = [x for x in pytree.tree_leaves(call.arguments) if isinstance(x, (int, float))]
    chosen = torch.cat([y.real.reshape(-1) for y in call(*given)])
    known = torch.tensor([0.0, *others, *range(1, start)], dtype=torch.float64)
    return bool(torch.isin(chosen, known).all())


def scatters(call, inputs):
    first, *rest = inputs
    base = torch.zeros(first.numel(), dtype=first.dtype)
    for i in range(first.numel()):
        one = base.index_fill(0, torch.tensor(i), 1).view(first.shape)
        (result,) = call(one, *rest)
        if result.count_nonzero() > 1 or not torch.isin(result, torch.tensor([0.0, 1.0])).all():
            return False
    return True


def is_linear(call, inputs):
    left, right = numbers(2, *inputs), numbers(3, *inputs)
    both = call(*(x - 2 * y for x, y in zip(left, right, strict=True)))
    apart = [x - 2 * y for x, y in zip(call(*left), call(*right), strict=True)]
    return close(both, apart)


def is_piecewise_linear(call, inputs):
    """The second derivative is zero, by the rules for tangents."""
    if not call(*inputs):
        return True
    tangents = tuple(numbers(2, *inputs))

    def pushed(*primals):
        return tl.jvp(call, primals, tangents)[1]

    second = tl.jvp(pushed, tuple(inputs), tangents)[1]
    return close(second, [torch.zeros_like(y) for y in second])


def is_step(call, inputs):
    near = [x + 1e-9 * y for x, y in zip(inputs, numbers(2, *inputs), strict=True)]
    return close(call(*near), call(*inputs), tolerance=0)


def elementwise_in(call, inputs):
    """A change of some elements changes the results only there, and the term is the slope."""
    (args, kwargs), op = call.arguments, call.op
    names = [a.name for a in op._schema.arguments]
    results = [y for y in pytree.tree_leaves(op(*args, **kwargs)) if isinstance(y, Tensor)]
    for place in facts(op)["elementwise_in"]:
        x = args[place] if place < len(args) else kwargs.get(names[place])
        if not is_real(x):
            continue
        term = _C.term(op._schema.name, op._schema.overload_name, place)

        def of(x, place=place):
            new = (*args[:place], x, *args[place + 1 :]) if place < len(args) else args
            named = kwargs if place < len(args) else {**kwargs, names[place]: x}
            return pytree.tree_leaves(op(*new, **named))[0]

        changed = torch.arange(x.numel()).view(x.shape) % 2 == 1
        before, after = results[0], of(torch.where(changed, x * 0.9, x))
        elsewhere = ~changed.expand(before.shape)
        if not close([after[elsewhere]], [before[elsewhere]], tolerance=0):
            return False
        (tangent,) = numbers(4, x)
        slope = term(torch.ones((), dtype=x.dtype), args, kwargs, results)
        found = torch.zeros_like(before) if slope is None else slope * tangent
        _, expected = tl.jvp(of, (x,), (tangent,))
        if not close([found.expand(before.shape).to(before.dtype)], [expected]):
            return False
    return True


def close(found, expected, tolerance=1e-7):
    pairs = zip(found, expected, strict=True)
    return all(
        torch.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True) for x, y in pairs
    )


CHECKS: dict[str, Any] = {
    "gathers": gathers,
    "scatters": scatters,
    "is_linear": is_linear,
    "is_piecewise_linear": is_piecewise_linear,
    "is_step": is_step,
    "elementwise_in": elementwise_in,
}


@pytest.mark.parametrize("fact", CHECKS)
def test_facts_hold_of_the_operators_that_have_them(calls, fact):
    wrong = {str(op) for op in stating(fact) for call in calls[op] if not holds(call, fact)}
    assert not wrong, ", ".join(sorted(wrong))
    unreached = {str(op) for op in stating(fact) if not calls[op] and op not in UNREACHED}
    assert not unreached, ", ".join(sorted(unreached))
