"""The snapshot of the stack: what it says of each layer, and which line entered it."""

import pytest
import torch
import torch.func

import torchlayers as tl

X = torch.arange(6.0).reshape(3, 2)


def stack_in(transform, *args):
    """The stack inside a transformed function, which transform makes and calls."""
    seen = []

    def func(x):
        seen.append(tl.current_stack())
        return x.sin().sum()

    transform(func)(*args)
    return seen[0]


def test_a_vmap_says_how_many_samples_it_has_and_how_it_draws():
    for vmap in (tl.vmap, torch.func.vmap):
        (entry,) = stack_in(lambda f, vmap=vmap: vmap(f, randomness="different"), X)
        assert (entry.batch_size, entry.randomness) == (3, "different")
        assert entry.modes_outside == {}


def test_a_grad_says_which_modes_were_active_outside():
    (entry,) = stack_in(tl.grad, X)
    assert entry.modes_outside == {"grad_mode": True, "inference_mode": False}
    assert (entry.batch_size, entry.randomness) == (None, None)
    with torch.no_grad():
        (entry,) = stack_in(tl.grad, X)
    assert entry.modes_outside["grad_mode"] is False


def test_each_layer_knows_the_line_that_entered_it():
    def outer(x):
        return tl.grad(loss)(x)  # the inner line

    def loss(x):
        seen.append(tl.current_stack())
        return x.sum()

    seen = []
    tl.vmap(outer)(X)  # the outer line
    entered = [entry.entered_at for entry in seen[0]]
    assert [line.partition(", ")[2] for line in entered] == [
        "`tl.vmap(outer)(X)  # the outer line`",
        "`return tl.grad(loss)(x)  # the inner line`",
    ]
    first = outer.__code__.co_firstlineno
    assert [line.partition(",")[0] for line in entered] == [
        f"test_current_stack.py:{first + 8}",
        f"test_current_stack.py:{first + 1}",
    ]


def test_two_layers_of_one_kind_have_a_line_each():
    def outer(x):
        return tl.vmap(inner)(x)  # the inner line

    def inner(x):
        seen.append(tl.current_stack())
        return x

    seen = []
    tl.vmap(outer)(X)  # the outer line
    lines = [entry.entered_at.partition("# ")[2] for entry in seen[0]]
    assert lines == ["the outer line`", "the inner line`"]


@pytest.mark.parametrize(
    ("transform", "kinds"),
    [
        (tl.hessian, ["vmap", "jvp", "grad"]),
        (tl.jacrev, ["grad"]),
        (tl.jacfwd, ["vmap", "jvp"]),
        (tl.functionalize, ["functionalize"]),
        (lambda f: tl.seeded(f, tl.random.key(0)), ["seeded"]),
        (lambda f: tl.vmap(f, chunk_size=1), ["vmap"]),
        (lambda f: tl.vmap(tl.checkpoint(f)), ["vmap"]),
        (lambda f: torch.func.vmap(tl.grad(f)), ["vmap", "grad"]),
        (lambda f: tl.vmap(torch.func.grad(f)), ["vmap", "grad"]),
        (
            lambda f: torch.func.jacfwd(torch.func.functionalize(f)),
            ["vmap", "jvp", "functionalize"],
        ),
        (lambda f: lambda x: tl.jvp(f, (x,), (x,)), ["jvp"]),
        (lambda f: lambda x: tl.hvp(f, (x,), (x,)), ["jvp", "grad"]),
    ],
)
def test_layers_that_a_transform_enters_have_the_line_of_its_call(transform, kinds):
    stack = stack_in(transform, X)
    assert [entry.kind for entry in stack] == kinds
    assert all("transform(func)(*args)" in e.entered_at or "tl." in e.entered_at for e in stack)


def test_inside_of_a_batched_branch_the_inner_vmap_has_the_line_of_cond():
    seen = []

    def branch(x):
        seen.append(tl.current_stack())
        return x

    tl.vmap(lambda x: tl.cond(x.sum() > 3, branch, torch.neg, x))(X)
    outer, inner = seen[0]
    assert outer.kind == inner.kind == "vmap"
    assert "tl.cond(" in outer.entered_at and outer.entered_at == inner.entered_at


def test_it_prints_a_layer_a_line():
    lines = str(stack_in(lambda f: tl.vmap(tl.grad(f)), X)).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "vmap (level 1, torchlayers, batch_size=3, randomness='error') entered at test_current_"
    )
    assert lines[1].startswith("grad (level 2, torchlayers, previous_grad_mode=True, ")
    assert str(tl.current_stack()) == "no layers"
    assert tl.current_stack() == ()


class Entered(tl.Layer):
    """A layer without rules."""


def test_a_with_block_notes_its_line():
    def inside(x):
        with Entered() as layer:  # the block
            seen.append(tl.current_stack())
            return layer.apply(torch.sin, x)

    seen = []
    tl.vmap(inside)(X)  # the call
    kinds = [(entry.kind, entry.entered_at.partition(", ")[2]) for entry in seen[0]]
    assert kinds == [
        ("vmap", "`tl.vmap(inside)(X)  # the call`"),
        ("entered", "`with Entered() as layer:  # the block`"),
    ]
    assert seen[0][1].metadata == {}


def test_a_call_inside_a_with_block_has_its_own_line():
    with Entered():  # the block
        outer, inner = stack_in(tl.vmap, X)
    assert outer.entered_at.endswith("`with Entered():  # the block`")
    assert inner.entered_at.endswith("`transform(func)(*args)`")


def test_a_layer_that_a_block_has_entered_may_be_called_later():
    def inside(x):
        seen.append(tl.current_stack()[-1].entered_at)
        return x

    seen = []
    layer = Entered()
    with layer:
        pass
    layer(inside)(X)  # the call
    assert seen[0].endswith("`layer(inside)(X)  # the call`")
