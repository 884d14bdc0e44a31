"""The run in which a sparsity pattern is detected changes nothing for what runs after it."""

import pytest
import torch

import torchlayers as tl
from torchlayers.compiler.capture.record import record

X = torch.linspace(0.5, 2.0, 8, dtype=torch.float64)


def dropped(x):
    return torch.nn.functional.dropout(x, 0.5) * x


def transform():
    """New, so that its first call detects."""
    return tl.jacfwd(dropped, sparse=True, randomness="same")


def entries(matrix):
    return matrix.to_dense().diagonal()


def after_the_seed(f):
    torch.manual_seed(0)
    return entries(f(X))


def test_the_first_call_draws_what_later_ones_draw():
    f = transform()
    first = after_the_seed(f)
    assert first.equal(after_the_seed(f))
    assert first.equal(after_the_seed(tl.compile(transform(), backend="replay")))


def test_a_key_gives_the_same_numbers_at_the_first_call():
    f = transform()
    seeded = tl.seeded(lambda x: entries(f(x)), tl.random.key(0))
    assert seeded(X).equal(seeded(X))


def test_a_pattern_leaves_the_generator_alone():
    before = torch.get_rng_state()
    tl.sparsity(dropped, X)
    assert torch.get_rng_state().equal(before)


def test_a_generator_is_restored_after_an_error():
    def fails(x):
        torch.rand(3)
        raise ZeroDivisionError

    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        tl.sparsity(fails, X)
    assert torch.get_rng_state().equal(before)


def printed(x):
    tl.debug.print("{}", x)
    return dropped(x)


def targets(f):
    return [str(node.target) for node in record(f, (X,), {}).graph.graph.nodes]


def test_a_captured_graph_has_no_operators_of_the_detection():
    detected = targets(tl.jacfwd(printed, sparse=True, randomness="same"))
    eye = torch.eye(8)
    assert detected == targets(tl.jacfwd(printed, sparse=eye, randomness="same"))
    assert detected.count("torchlayers.debug_print.default") == 1


def test_a_captured_graph_keeps_what_the_function_stores_and_reads_later():
    def with_a_cache(x):
        stored = []

        def f(x):
            if not stored:
                stored.append(torch.ones(8, dtype=torch.float64).cumsum(0))
            return x.sin() * stored[0]

        return entries(tl.jacfwd(f, sparse=True)(x))

    compiled = tl.compile(with_a_cache, backend="replay")
    torch.testing.assert_close(compiled(X), X.cos() * torch.arange(1.0, 9.0, dtype=torch.float64))
