"""Programs match on error messages: where one looks for a phrase of torch.func's, ours contains it.

Each phrase was found in a program that catches the error and searches its message, or in a test of
one. Messages that no known program searches keep our wording (tests/errors).
"""

import dataclasses

import pytest
import torch
import torch.func
from torch import nn

import torchlayers as tl
from tests.errors.programs import WithBackwardOnly, WithoutSetupContext
from tests.support.calls import Call, run


@dataclasses.dataclass(frozen=True)
class Phrase:
    name: str
    call: Call
    phrase: str
    who: str
    # re.match looks only at the beginning.
    at_the_beginning: bool = False


X = torch.tensor([0.5, 1.0, 2.0])
BATCH = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

POSTERIORS = "posteriors, which then tells how to return aux"
TORCHRL = "torchrl's losses, which then name their own option"
TORCHRL_SAFE = "torchrl's and tensordict's safe modules, which then advise against safe=True"
FUZZER = "NablaFuzz, which passes these errors over"
SHAPE_CHECKER = "a checker of shapes, whose test holds it against vmap"
ENSEMBLE = "a test of modules that are made for vmap"
FORCES = "a package of force fields, which then differentiates by autograd"
SIMULATOR = "environments that step by NumPy, which then step without vmap"
FALLBACK = "a test of code that forbids the slow fallback"
FOLDED = "a layer that writes in place, and out of place where vmap refuses"
DROPOUT = "models that leave dropout out where vmap refuses it"
LESSON = "a test of a lesson about writing in place"


def aux_missing(transform):
    return lambda tf: transform(tf)(X)


def without_fallback(tf):
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        return tf.vmap(torch.histc)(BATCH)
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)


SUMS = torch.zeros(2)


def adds_in_place(x):
    return SUMS.index_add_(0, torch.tensor([0, 1]), x)


def writes_what_exp_needs(x):
    y = x.exp()
    y.mul_(2)
    return y.sum()


HAS_AUX = "should be a tuple: (output, aux) if has_aux is True"
RANDOM = "vmap: called random operation while in randomness error mode"
CONTROL_FLOW = "attempting to use a Tensor in some data-dependent control flow"
PHRASES = [
    Phrase("grad", lambda tf: tf.grad(torch.sum, has_aux=True)(X), HAS_AUX, POSTERIORS),
    Phrase("vjp", lambda tf: tf.vjp(torch.sum, X, has_aux=True), HAS_AUX, POSTERIORS),
    Phrase("jvp", lambda tf: tf.jvp(torch.sum, (X,), (X,), has_aux=True), HAS_AUX, POSTERIORS),
    Phrase("jacrev", lambda tf: tf.jacrev(torch.sum, has_aux=True)(X), HAS_AUX, POSTERIORS),
    Phrase("jacfwd", lambda tf: tf.jacfwd(torch.sum, has_aux=True)(X), HAS_AUX, POSTERIORS),
    Phrase("rand", lambda tf: tf.vmap(lambda x: x + torch.rand(2))(BATCH), RANDOM, TORCHRL, True),
    Phrase("dropout", lambda tf: tf.vmap(nn.Dropout())(BATCH), RANDOM, TORCHRL, True),
    Phrase("dropout in a model", lambda tf: tf.vmap(nn.Dropout())(BATCH), "vmap", DROPOUT),
    Phrase("randn_like", lambda tf: tf.vmap(torch.randn_like)(BATCH), RANDOM + ".", FUZZER),
    Phrase("if", lambda tf: tf.vmap(lambda x: x if x.sum() > 3 else -x)(BATCH), CONTROL_FLOW,
           TORCHRL_SAFE),
    Phrase("all", lambda tf: tf.vmap(lambda x: x if (x > 3).all() else -x)(BATCH), CONTROL_FLOW,
           TORCHRL_SAFE),
    Phrase("item", lambda tf: tf.vmap(lambda x: x * x.sum().item())(BATCH),
           "vmap: It looks like you're calling .item() on a Tensor", FUZZER),
    Phrase("numpy", lambda tf: tf.vmap(lambda x: torch.from_numpy(x.numpy()))(BATCH),
           "Cannot access data pointer of Tensor that doesn't have storage", FUZZER),
    Phrase("tolist", lambda tf: tf.vmap(lambda x: torch.tensor(x.tolist()))(BATCH),
           "storage", SIMULATOR),
    Phrase("an integer output", lambda tf: tf.jacrev(torch.argmax)(X),
           "All outputs of f must be floating-point or complex Tensors, got Tensor with dtype",
           FUZZER),
    Phrase("a complex input of jacrev", lambda tf: tf.jacrev(torch.abs)(X * 1j),
           "Expected all inputs to be real but received complex", FUZZER),
    Phrase("a complex input of jacfwd", lambda tf: tf.jacfwd(torch.abs)(X * 1j),
           "Expected all inputs to be real but received complex", FUZZER),
    Phrase("a complex output of jacrev", lambda tf: tf.jacrev(lambda x: x * 1j)(X),
           "Expected all outputs to be real but", FUZZER),
    Phrase("a complex output of jacfwd", lambda tf: tf.jacfwd(lambda x: x * 1j)(X),
           "Expected all outputs to be real but", FUZZER),
    Phrase("a Function without jvp",
           lambda tf: tf.jvp(WithBackwardOnly.apply, (X,), (X,)),
           "You must implement the jvp function for custom autograd.Function to use it with "
           "forward mode AD.", FUZZER),
    Phrase("batches of two sizes", lambda tf: tf.vmap(torch.mul)(BATCH, BATCH[:2]),
           "same size in the mapped dimension", SHAPE_CHECKER),
    Phrase("an operator without a rule", lambda tf: tf.vmap(torch.equal, (0, None))(BATCH, X),
           "Batching rule not implemented", ENSEMBLE),
    Phrase("the fallback forbidden", without_fallback, "vmap fallback", FALLBACK),
    Phrase("index_add_", lambda tf: tf.vmap(adds_in_place)(BATCH), "out-of-place", FOLDED),
    Phrase("a tensor overwritten", lambda tf: tf.grad(writes_what_exp_needs)(X),
           "is at version 1; expected version 0", LESSON),
]  # fmt: skip


@pytest.mark.parametrize("case", PHRASES, ids=lambda case: f"{case.name}: {case.who}")
@pytest.mark.parametrize("tf", [tl, torch.func], ids=["torchlayers", "torch.func"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_message_contains_the_phrase_programs_look_for(case, tf):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        run(case.call, tf)
    if case.at_the_beginning:
        assert str(caught.value).startswith(case.phrase)
    else:
        assert case.phrase in str(caught.value)


def test_aux_may_be_anything():
    """torch.func rejects an aux that is not a tensor, and posteriors looks for its message."""
    assert tl.grad(lambda x: (x.sum(), None), has_aux=True)(X)[1] is None
    with pytest.raises(RuntimeError, match="Expected tensors, got unsupported type"):
        torch.func.grad(lambda x: (x.sum(), None), has_aux=True)(X)


def test_a_function_without_setup_context_is_named_with_it():
    """FORCES looks for this word where torch.func rejects one; torchlayers accepts most of them."""
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: WithoutSetupContext.apply(x).sum())(X)
    assert tl.grad(lambda x: WithoutSetupContext.apply(x).sum())(X).tolist() == [2.0, 2.0, 2.0]
