"""Misuses of jet, each with the message."""

import pytest
import torch

import torchlayers as tl
from tests.support.calls import ambient
from torchlayers.errors import DtypeError, NotTensorError, OutputError, StructureError

X = torch.ones(3)
MISUSES = {
    "primals not a tuple": (
        lambda: tl.jet(torch.sin, X, ([X],)),
        StructureError,
        "primals must be a tuple with an entry for each argument of the function; got Tensor. For "
        "one argument write (p,).",
    ),
    "series not a tuple": (
        lambda: tl.jet(torch.sin, (X,), X),
        StructureError,
        "series must be a tuple with an entry for each argument of the function; got Tensor. For "
        "one argument write (s,).",
    ),
    "no primals": (
        lambda: tl.jet(lambda: X, (), ()),
        StructureError,
        "primals must hold at least one tensor.",
    ),
    "a primal of no tensors": (
        lambda: tl.jet(lambda tree: X, ({},), ([],)),
        StructureError,
        "primals must hold at least one tensor.",
    ),
    "too few series": (
        lambda: tl.jet(torch.mul, (X, X), ([X],)),
        StructureError,
        "series must have a list for each of the 2 primals, got 1.",
    ),
    "series of one primal not a list": (
        lambda: tl.jet(torch.sin, (X,), (X,)),
        StructureError,
        "series 0 must be the list of the derivatives of primal 0, [x', x'', ...]; got Tensor.",
    ),
    "different orders": (
        lambda: tl.jet(torch.mul, (X, X), ([X, X], [X])),
        StructureError,
        "all series must have the same length, the order: series 0 has 2 derivatives, series 1 has "
        "1. Write None for those that are zero.",
    ),
    "another structure": (
        lambda: tl.jet(lambda x: x["a"], ({"a": X},), ([X],)),
        StructureError,
        "derivative 1 of primal 0 must have the primal's structure: got * for {'a': *} (* is a "
        "leaf).",
    ),
    "another shape": (
        lambda: tl.jet(torch.mul, (X, X), ([X, X], [X, torch.ones(2)])),
        StructureError,
        "derivative 2 of primal 1 has shape (2,), but its primal has shape (3,): the shapes must "
        "be equal.",
    ),
    "another shape, in a dict": (
        lambda: tl.jet(lambda x: x["a"], ({"a": X},), ([{"a": torch.ones(2)}],)),
        StructureError,
        "derivative 1 of primal 0, ['a'] has shape (2,), but its primal has shape (3,): the shapes "
        "must be equal.",
    ),
    "another dtype": (
        lambda: tl.jet(torch.sin, (X,), ([X.double()],)),
        DtypeError,
        "derivative 1 of primal 0 is torch.float64, but its primal is torch.float32: the dtypes "
        "must be equal.",
    ),
    "another device": (
        lambda: tl.jet(torch.sin, (X,), ([torch.ones(3, device="meta")],)),
        StructureError,
        "derivative 1 of primal 0 is on meta, but its primal is on cpu: they must be on the same "
        "device.",
    ),
    "a number for a derivative": (
        lambda: tl.jet(torch.sin, (X,), ([1.0],)),
        NotTensorError,
        "derivative 1 of primal 0 must be a tensor, or None for zero; got float.",
    ),
    "a number for a primal": (
        lambda: tl.jet(torch.sin, (1.0,), ([None],)),
        NotTensorError,
        "primal 0 must be a tensor, got float. Convert it to a tensor, or bind it beforehand, with "
        "functools.partial or a lambda.",
    ),
    "an integer primal": (
        lambda: tl.jet(torch.sin, (torch.arange(3),), ([None],)),
        DtypeError,
        "primal 0 must be floating-point or complex, got torch.int64. Convert it, or bind it "
        "beforehand, with functools.partial or a lambda.",
    ),
    "a function that returns a number": (
        lambda: tl.jet(lambda x: x.sum().item(), (X,), ([X],)),
        OutputError,
        "<lambda> must return only tensors, got float.",
    ),
    "a function that returns nothing": (
        lambda: tl.jet(lambda x: None, (X,), ([X],)),
        OutputError,
        "<lambda> must return only tensors, got NoneType.",
    ),
    "a function that returns an empty tuple": (
        lambda: tl.jet(lambda x: (), (X,), ([X],)),
        OutputError,
        "<lambda> returned nothing to differentiate.",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_refused_in_these_words(name):
    call, error, message = MISUSES[name]
    before = ambient()
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == f"torchlayers: jet: {message}"
    assert ambient() == before


def test_an_operator_without_any_derivative_is_refused():
    with pytest.raises(NotImplementedError, match="can't differentiate aten::to_mkldnn"):
        tl.jet(lambda x: x.to_mkldnn(), (X,), ([X],))
    assert tl.current_stack() == ()
