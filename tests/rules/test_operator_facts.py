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
from torchlayers import _C
from torchlayers.transforms.layers.rule_table import facts

A = torch.ops.aten
# Decomposed by torch before any layer sees it.
UNREACHED = {A.selu.default, A.linear.default}
# Of complex numbers alone; or whose draws are by rejection, which draws others for all elements.
UNCHECKED = {A._fft_c2c.default, A._fft_c2r.default, A._sample_dirichlet.default}
# op_db's have more elements, or there are none.
OWN = [
    (lambda x, y: A.slice_scatter(x, y, 1, 0, 2), [values(2, 3), values(2, 2)]),
    (A.lift, [values(2)]),
    (A._linalg_eigvals, [values(2, 3, 3)]),
    (lambda x: A.linalg_ldl_factor_ex(x + x.mT), [values(2, 3, 3)]),
    (lambda x: A._logcumsumexp(x, 1), [values(2, 3)]),
    (lambda x: A.linalg__powsum(x, 3, [1]), [values(2, 3)]),
    (lambda x: A._upsample_bilinear2d_aa(x, [2, 2], False), [values(2, 2, 3, 3)]),
    (A._addmm_activation, [values(2), values(3, 4), values(4, 2)]),
    (A._euclidean_dist, [values(3, 2), values(4, 2)]),
]
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
    for name in _C.stated_operators():
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


def along(call, inputs):
    """What changes on the first line, matrix or plane changes nothing on others."""
    kind, x = facts(call.op)["along"], inputs[0]
    ndim = x.dim()
    if kind == "matrices":
        dims = {ndim - 2, ndim - 1}
    elif "windows" in kind:
        dims = {*range(2, ndim)}
    else:
        dims = dims_of(call, ndim)
    place = [slice(None) if d in dims else slice(0, 1) for d in range(ndim)]
    if kind == "scans":
        place = [slice(1, None) if d in dims else slice(None) for d in range(ndim)]
    changed = x.clone()
    changed[tuple(place)] *= 0.9
    for before, after in zip(call(*inputs), call(changed, *inputs[1:]), strict=True):
        if kind == "reduces" and before.dim() < ndim:
            kept = [1 if d in dims else size for d, size in enumerate(x.shape)]
            before, after = before.reshape(kept), after.reshape(kept)
        for d in range(min(ndim, before.dim())):
            size = before.shape[d]
            if kind == "scans" and d in dims:
                first, count = 0, min(1, size)
            elif kind == "scans" or d in dims:
                continue
            else:
                first, count = min(1, size), max(size - 1, 0)
            parts = [y.narrow(d, first, count) for y in (before, after)]
            if not torch.allclose(*parts, rtol=0, atol=0, equal_nan=True):
                return False
    return True


def dims_of(call, ndim):
    args, kwargs = call.arguments
    names = [a.name for a in call.op._schema.arguments]
    values = {a.name: a.default_value for a in call.op._schema.arguments}
    values |= dict(zip(names, args, strict=False)) | kwargs
    if values.get("reduction", 1) == 0:
        return set()
    dim = values["dim"] if "dim" in values else -1 if facts(call.op)["along"] == "mixes" else None
    dim = [*range(ndim)] if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    return {d % max(ndim, 1) for d in dim} if ndim else set()


def selects(call, inputs):
    return all(torch.isin(y, inputs[0]).all() or y.isnan().any() for y in call(*inputs))


def contracts(call, inputs):
    """What is changed at the first place of all dimensions changes nothing at their others."""
    left, right, dims = facts(call.op)["contracts"]
    (args, kwargs), (operands, last) = call.arguments, dims.split("->")
    for place, own in zip((left, right), operands.split(","), strict=True):
        x = args[place]
        if x.dim() != len(own.replace("...", "")):
            continue  # of a batch
        changed = x.clone()
        changed[tuple(slice(0, 1) if d in last else slice(None) for d in own.strip("."))] *= 0.5
        before = call.op(*args, **kwargs)
        after = call.op(*args[:place], changed, *args[place + 1 :], **kwargs)
        for d, label in enumerate(last.strip(".")):
            parts = [y.movedim(d - len(last.strip(".")), 0)[1:] for y in (before, after)]
            if label in own and not torch.equal(*parts):
                return False
    return True


def slope(call, inputs):
    a, b, c = facts(call.op)["slope"]
    (args, kwargs), name = call.arguments, (call.op._schema.name, call.op._schema.overload_name)
    y = call.op(*args, **kwargs)
    one = torch.ones((), dtype=y.dtype)
    return close([_C.term(*name, 0)(one, args, kwargs, [y])], [a + b * y + c * y * y])


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
    "along": along,
    "selects": selects,
    "contracts": contracts,
    "slope": slope,
}


@pytest.mark.parametrize("fact", CHECKS)
def test_facts_hold_of_the_operators_that_have_them(calls, fact):
    wrong = {str(op) for op in stating(fact) for call in calls[op] if not holds(call, fact)}
    assert not wrong, ", ".join(sorted(wrong))
    unreached = {
        str(op) for op in stating(fact) if not calls[op] and op not in UNREACHED | UNCHECKED
    }
    assert not unreached, ", ".join(sorted(unreached))
