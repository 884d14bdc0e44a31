"""The keyed draws of a sample do not depend on which branches the other samples take."""

import pytest
import torch

import torchlayers as tl
from torchlayers import random

X = torch.tensor([0.5, 2.0, 7.0, 20.0], dtype=torch.double)
KEY = random.key(3)


def drawn():
    return torch.randn((), dtype=torch.double)


def in_cond(x, batched):
    return tl.cond(
        x > 1,
        lambda: drawn() * x + drawn(),
        lambda: tl.cond(x > 0.7, lambda: x, lambda: drawn() - x),
        batched=batched,
    )


def in_switch(x, batched):
    branches = [drawn, lambda: drawn() + drawn(), lambda: torch.zeros_like(drawn())]
    return tl.switch(x.long(), branches, batched=batched) + x


def in_while_loop(x, batched):
    way = {"select": "hold", "gather": "drop"}[batched]
    return tl.while_loop(lambda y: y < 30, lambda y: y + drawn().abs() * 10, x, batched=way)


def in_fori_loop(x, batched):
    way = {"select": "hold", "gather": "drop"}[batched]
    return tl.fori_loop(0, x.long(), lambda _, y: y + drawn(), x, batched=way)


PROGRAMS = [in_cond, in_switch, in_while_loop, in_fori_loop]


@pytest.mark.parametrize("transform", [lambda f: f, tl.grad], ids=["value", "grad"])
@pytest.mark.parametrize("batched", ["select", "gather"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_keyed_draws_equal_those_of_a_single_sample(program, batched, transform):
    def before_and_after(x):
        return drawn() * x + program(x, batched) + drawn() * x.square()

    f = transform(before_and_after)
    found = tl.vmap(f, randomness="keyed", key=KEY)(X)
    alone = [tl.seeded(f, random.fold_in(KEY, i))(x) for i, x in enumerate(X)]
    torch.testing.assert_close(found, torch.stack(alone))
    in_chunks = tl.vmap(f, randomness="keyed", key=KEY, chunk_size=3)(X)
    torch.testing.assert_close(in_chunks, found)


def test_draws_of_one_branch_after_the_other_differ():
    def draws():
        return torch.stack([tl.cond(True, drawn, lambda: torch.zeros(())) for _ in range(2)])

    assert tl.seeded(draws, KEY)().unique().numel() == 2


def test_draws_inside_and_outside_a_branch_differ():
    def draws():
        inner = tl.cond(True, lambda: torch.stack([drawn(), drawn()]), lambda: torch.zeros(2))
        return torch.cat([drawn()[None], inner, drawn()[None]])

    assert tl.seeded(draws, KEY)().unique().numel() == 4
