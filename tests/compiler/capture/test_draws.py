"""Random numbers of Python and NumPy: each call draws them again, as the function itself does."""

import math
import random
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.support.calls import assert_same


class State:
    def __init__(self):
        self.rng, self.generator = random.Random(0), np.random.default_rng(0)
        self.legacy = np.random.RandomState(0)
        self.count, self.last, self.sum = 0, 0.0, torch.zeros(4)
        self.weight = nn.Parameter(torch.ones(4))
        self.items = [1, 2, 3]

    def now(self):
        generators = self.rng.getstate(), self.legacy.randint(100), random.getstate()
        numbers = self.count, self.last, self.sum.clone(), [*self.items]
        return *numbers, generators, self.generator.bit_generator.state, np.random.rand()


@pytest.fixture(autouse=True)
def random_state_restored():
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def of_python(state, x):
    return x * random.random() + random.gauss(0, 1)


def of_numpy(state, x):
    return x * np.random.rand() + np.random.randint(5)


def of_objects(state, x):
    return x * state.rng.uniform(1, 2) + state.generator.normal() * state.legacy.standard_normal()


def branches(state, x):
    return x if random.random() < 0.5 else x * state.rng.random()


def indexes(state, x):
    return x[random.randint(0, 3)]


def chooses(state, x):
    return x * {"a": 1.0, "b": 2.0}[random.choice(("a", "b"))]


def stores(state, x):
    state.last = 0.5 * state.last + random.random()
    state.count += 1
    state.sum = state.sum + x * state.last
    return state.sum * state.count


def in_a_gradient(state, x):
    return tl.grad(lambda y: (y**3).sum() * random.random())(x)


def with_a_parameter(state, x):
    return (state.weight**4 * x * random.random()).sum()


def raises_in_the_middle(state, x):
    state.last = random.random()
    y = x[(x.sum() > 20).long() * 9]
    return y * random.random()


def seeds(state, x):
    state.rng.seed(3)
    return x * random.random()


def shuffles(state, x):
    random.shuffle(state.items)
    return x * random.random()


def converts(state, x):
    return x * float(random.random())


def reads_a_value_first(state, x):
    return x * random.random() if x.sum() > 0 else x


def compares_with_a_tensor(state, x):
    return x * 2 if random.random() < x.mean().sigmoid().item() else x


def chooses_a_function(state, x):
    first, second = state.rng.sample([torch.sin, torch.cos], 2)
    return random.choice((first, second))(x) * random.choices([1.0, 2.0], k=2)[1]


def computes_with_math(state, x):
    return x * math.sqrt(random.random()) + round(state.rng.gauss(0, 1), 2)


def draws_an_array(state, x):
    return x * torch.as_tensor(state.generator.normal(size=4))


def draws_an_array_of_floats(state, x):
    noise = torch.from_numpy(0.1 * state.generator.normal(0, 1, (2, 4)).astype("float32") + 1)
    return x * noise.sum(0)


def permutes(state, x):
    return x[torch.from_numpy(state.generator.permutation(4))] + x[state.generator.choice(4, 4)]


def masks(state, x):
    return x * torch.from_numpy(np.random.rand(4) < 0.5)


def takes_elements(state, x):
    scale, shift = np.exp(state.generator.normal(size=2))
    return x * scale + shift


def makes_a_tensor_of_numbers(state, x):
    return x + torch.tensor([random.random() for _ in range(4)])


def branches_on_an_array(state, x):
    return x.sin() if (state.generator.random(3) < 0.5).any() else x.cos()


def stores_an_array(state, x):
    state.items.append(state.generator.normal(size=2).sum())
    return x * 2


def takes_the_element_of_a_value(state, x):
    state.items.append(float(state.generator.normal(size=4)[x.argmax().item()]))
    return x * 2


def reads_the_state(state, x):
    state.items.append(state.rng.getstate()[1][0])
    return x * state.rng.random()


# With the most graphs.
DRAWN = {
    of_python: 1,
    of_numpy: 1,
    of_objects: 1,
    branches: 2,
    indexes: 4,
    chooses: 2,
    stores: 1,
    in_a_gradient: 1,
    with_a_parameter: 1,
    raises_in_the_middle: 1,
    seeds: 2,
    shuffles: 6,
    converts: 1,
    reads_a_value_first: 1,
    compares_with_a_tensor: 1,
    chooses_a_function: 4,
    computes_with_math: 1,
    draws_an_array: 1,
    draws_an_array_of_floats: 1,
    permutes: 1,
    masks: 1,
    takes_elements: 1,
    makes_a_tensor_of_numbers: 1,
    branches_on_an_array: 2,
    stores_an_array: 1,
    takes_the_element_of_a_value: 1,
}


def shuffles_an_array(state, x):
    places = np.arange(4)
    state.generator.shuffle(places)
    return x[torch.from_numpy(places)]


UNCOMPILED = [shuffles_an_array, reads_the_state]


def run(program, compiled):
    state = State()
    random.seed(0)
    np.random.seed(0)
    function = (lambda f: tl.compile(f, backend="replay") if compiled else f)(
        lambda x: program(state, x)
    )
    seen = []
    for i in range(10):
        try:
            result = function(torch.arange(4.0) + i)
        except IndexError:
            result = "IndexError"
        seen.append(result)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            for _ in range(3):
                (result,) = torch.autograd.grad(result.sum(), state.weight, create_graph=True)
                seen.append(result)
        seen.append(state.now())
    return seen, function


@pytest.mark.parametrize("program", [*DRAWN, *UNCOMPILED])
def test_numbers_and_generators_are_eager_codes(program):
    eager, _ = run(program, False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen, compiled = run(program, True)
    assert_same(seen, eager, rounded=True)
    report, messages = compiled.report(), [str(each.message) for each in caught]
    if program in DRAWN:
        assert (messages, report.as_it_is) == ([], "")
        assert len(report.signatures) <= DRAWN[program]
    else:
        (message,) = messages
        assert "at each call" in message and "runs uncompiled" in message
    assert random.random.__self__ is random._inst and "random" not in vars(random.Random)


def test_the_report_names_what_is_drawn_from():
    compiled = tl.compile(lambda x: x * random.random(), backend="replay")
    compiled(torch.ones(2))
    assert compiled.report().signatures[0].writes == ("Python's random numbers",)


def test_a_function_that_draws_is_captured_for_each_size():
    compiled = tl.compile(lambda x: x * random.random(), dynamic=True, backend="replay")
    compiled(torch.ones(4))
    with pytest.warns(UserWarning, match="it changes Python's random numbers"):
        compiled(torch.ones(5))


def test_graphs_made_for_the_user_draw_once():
    graph = tl.make_graph(lambda x: x * random.random())(torch.ones(2))
    assert torch.equal(graph(torch.ones(2))[0], graph(torch.ones(2))[0])


def test_other_threads_draw_plain_numbers():
    kinds, ended = set(), threading.Event()

    def draw():
        rng = random.Random(1)
        while not ended.is_set():
            kinds.update((type(random.random()), type(rng.uniform(0, 1))))

    other = threading.Thread(target=draw)
    other.start()
    try:
        state = State()
        for _ in range(3):
            compiled = tl.compile(lambda x: x * state.rng.random(), backend="replay")
            compiled(torch.ones(2))
    finally:
        ended.set()
        other.join()
    assert [kind.__name__ for kind in kinds] == ["float"]
