"""torch's flex_attention inside transforms, compared with attention written by hand."""

import math

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import torchlayers as tl
from tests.support.calls import assert_same

torch.manual_seed(0)
N = 8
Q, K, V = torch.randn(3, 2, 2, N, 4, dtype=torch.float64)
BIAS = torch.randn(N, N, dtype=torch.float64)
ARGS = (Q, K, V, BIAS)
CAUSAL = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, "cpu", BLOCK_SIZE=N)

pytestmark = pytest.mark.filterwarnings(
    "ignore:flex_attention called without", "ignore::UserWarning"
)


def flex(q, k, v, bias):
    return flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i, j] * s.sin(), block_mask=CAUSAL
    )


def written_out(q, k, v, bias):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores + bias * scores.sin()
    scores = scores.masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -math.inf)
    return scores.softmax(-1) @ v


def batch(x):
    return torch.stack([x, x / 2, -x])


def tangents(args):
    return tuple(x.cos() for x in args)


def loss(f):
    return lambda *args: f(*args).square().sum()


BY_ALL = (0, 1, 2, 3)
USES = {
    "vmap": lambda f: tl.vmap(f)(*map(batch, ARGS)),
    "vmap of some": lambda f: tl.vmap(f, (0, None, None, None))(batch(Q), K, V, BIAS),
    "vmap of the bias": lambda f: tl.vmap(f, (None, None, None, 0))(Q, K, V, batch(BIAS)),
    "jvp": lambda f: tl.jvp(f, ARGS, tangents(ARGS)),
    "grad": lambda f: tl.grad(loss(f), BY_ALL)(*ARGS),
    "grad by a captured bias": lambda f: tl.grad(lambda bias: loss(f)(Q, K, V, bias))(BIAS),
    "vjp": lambda f: tl.vjp(f, *ARGS)[1](Q),
    "vmap of grad": lambda f: tl.vmap(tl.grad(loss(f), BY_ALL))(*map(batch, ARGS)),
    "jvp of vmap": lambda f: tl.jvp(
        tl.vmap(f), (*map(batch, ARGS),), tangents((*map(batch, ARGS),))
    ),
    "hvp": lambda f: tl.hvp(loss(f), ARGS, tangents(ARGS)),
    "grad of grad": lambda f: tl.grad(loss(tl.grad(loss(f), 3)), (0, 3))(*ARGS),
    "jacrev": lambda f: tl.jacrev(lambda v: f(Q, K, v, BIAS)[0, 0, 0])(V),
    "functionalize": lambda f: tl.functionalize(f)(*ARGS),
    "linearize": lambda f: tl.linearize(f, *ARGS)[1](*ARGS),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_inside_a_transform(use):
    assert_same(use(flex), use(written_out), rounded=True)
    assert tl.current_stack() == ()


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["vmap", "jvp", "grad by a captured bias"])
def test_inside_a_transform_that_is_compiled(name):
    use = USES[name]
    compiled = tl.compile(lambda x: (use(flex), x.sin()), backend="replay")
    assert_same(compiled(Q)[0], use(written_out), rounded=True)


def test_grouped_queries_and_auxiliary_outputs():
    k, v = K[:, :1], V[:, :1]

    def f(q):
        output, aux = flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest(lse=True))
        return output, aux.lse

    output, logsumexp = tl.vmap(f)(batch(Q))
    scores = batch(Q) @ k.mT / 2
    torch.testing.assert_close(output, scores.softmax(-1) @ v)
    torch.testing.assert_close(logsumexp, scores.logsumexp(-1))


def test_fully_masked_row_and_its_derivatives_are_zero():
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i > 2), None, None, N, N, "cpu")

    def f(q):
        return flex_attention(q, K, V, block_mask=mask)

    gradient, output = tl.grad_and_value(lambda q: f(q).sum())(Q)
    assert gradient.isfinite().all() and output.isfinite()
    assert not gradient[..., :3, :].any() and gradient[..., 3:, :].any()
    assert not tl.jvp(f, (Q,), (Q,))[1][..., :3, :].any()


def test_flex_attention_outside_transforms_is_torchs():
    torch.testing.assert_close(flex(*ARGS), written_out(*ARGS))
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex(Q.clone().requires_grad_(), K, V, BIAS)
