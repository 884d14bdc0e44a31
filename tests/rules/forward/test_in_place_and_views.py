"""In-place writes and views under jvp, against equivalent programs that do not write."""

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.support.in_place_calls import PROGRAMS, W, summed
from tests.support.traced_steps import traced_steps

# torch batches some in-place operators sample by sample, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

X = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
T = torch.tensor([1.0, 0.3, -2.0, 0.7], dtype=torch.float64)
U = torch.tensor([-0.4, 1.1, 0.2, 0.9], dtype=torch.float64)
XS, TS = torch.stack([X, U]), torch.stack([T, X])


NESTS = {
    "jvp": lambda tf, f: tf.jvp(f, (X,), (T,)),
    "jvp(jvp)": lambda tf, f: tf.jvp(lambda x: tf.jvp(f, (x,), (T,)), (X,), (U,)),
    "vmap(jvp)": lambda tf, f: tf.vmap(lambda x, t: tf.jvp(f, (x,), (t,)))(XS, TS),
    "vmap(jvp) of tangents": lambda tf, f: tf.vmap(lambda t: tf.jvp(f, (X,), (t,))[1])(TS),
    "jvp(vmap)": lambda tf, f: tf.jvp(tf.vmap(f), (XS,), (TS,)),
    "grad(jvp)": lambda tf, f: tf.grad(summed(lambda x: tf.jvp(f, (x,), (T,))[1]))(X),
    "jvp(grad)": lambda tf, f: tf.jvp(tf.grad(summed(f)), (X,), (T,)),
    "jacfwd": lambda tf, f: tf.jacfwd(f)(X),
}


@pytest.mark.sweep
@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())
@pytest.mark.parametrize(("writing", "pure"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_that_writes_has_the_tangents_of_one_that_does_not(writing, pure, nest):
    torch.testing.assert_close(nest(tl, writing), nest(torch.func, pure))
    assert tl.current_stack() == ()


@pytest.mark.parametrize(("writing", "pure"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_the_two_programs_are_the_same(writing, pure):
    torch.testing.assert_close(writing(X), pure(X))


@pytest.mark.parametrize("nest", ["jvp", "jvp(jvp)", "vmap(jvp)", "jvp(vmap)", "jacfwd"])
def test_a_tensor_may_be_written_with_itself(nest):
    """torch.func reads the factor's tangent after it has been overwritten."""

    def square(x):
        y = x * 1
        return y.mul_(y)

    torch.testing.assert_close(NESTS[nest](tl, square), NESTS[nest](torch.func, torch.square))


def test_write_to_a_primal_persists_and_its_tangent_is_unchanged():
    x, t = X.clone(), T.clone()
    tl.jvp(lambda x: x.mul_(W).sin(), (x,), (t,))
    torch.testing.assert_close((x, t), (X * W, T))


@pytest.mark.parametrize("nest", ["vmap(jvp)", "jvp(vmap)"])
def test_a_batch_is_written_to_what_the_function_has_made(nest):
    made = NESTS[nest](tl, lambda x: torch.zeros(4, dtype=x.dtype).add_(x).square())
    torch.testing.assert_close(made, NESTS[nest](torch.func, torch.square))


@pytest.mark.parametrize(
    ("nest", "refusal"),
    [("vmap(jvp)", "mutate a captured tensor"), ("jvp(vmap)", "can't write a batched value")],
)
def test_a_batch_is_not_written_to_a_tensor_from_outside(nest, refusal):
    outside = torch.zeros(4, dtype=X.dtype)
    with pytest.raises(RuntimeError, match=refusal):
        NESTS[nest](tl, lambda x: outside.add_(x))
    assert tl.current_stack() == ()


def test_most_programs_follow_a_rule_in_place():
    """Otherwise the table would test torch's forward AD."""

    def writes_by_a_rule(writing):
        with traced_steps() as events:
            tl.jvp(writing, (X,), (T,))
        return any(e.step == "rule" and e.op.split(".")[0].endswith("_") for e in events)

    assert sum(writes_by_a_rule(writing) for writing, _ in PROGRAMS.values()) >= 30
