"""Tensors that escape their transform: how they behave after it has ended, and where they may be
used."""

import copy
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.func
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

import torchlayers as tl
from tests.support.calls import agree, assert_same, is_dead, level_of

X = torch.tensor([0.5, 1.0, 2.0])


def kept_by_grad(tf, x=X):
    kept = []
    tf.grad(lambda y: kept.append(y * 2) or y.sum())(x)
    return kept[0]


def kept_by_vjp(tf, x=X):
    kept = []
    tf.vjp(lambda y: kept.append(y * 2) or y, x)
    return kept[0]


def kept_by_jvp(tf, x=X):
    kept = []
    tf.jvp(lambda y: kept.append(y * 2) or y, (x,), (x,))
    return kept[0]


def kept_by_vmap(tf, x=X):
    kept = []
    tf.vmap(lambda y: kept.append(y * 2) or y)(x)
    return kept[0]


def kept_argument(tf, x=X):
    kept = []
    tf.grad(lambda y: kept.append(y) or y.sum())(x)
    return kept[0]


def kept_by_two_grads(tf, x=X):
    kept = []
    tf.grad(lambda x: tf.grad(lambda y: kept.append(x * y) or y.sum())(x).sum())(x)
    return kept[0]


def kept_by_grad_of_jvp(tf, x=X):
    kept = []
    tf.grad(lambda x: tf.jvp(lambda y: kept.append(x * y) or y.sum(), (x,), (x,))[1])(x)
    return kept[0]


def kept_by_vjp_then_pulled_back(tf, x=X):
    kept = []
    _, vjp_fn = tf.vjp(lambda y: kept.append(y * 2) or y**2, x)
    vjp_fn(x)
    return kept[0]


# Functions that let a wrapper escape, and the value in it.
WRAPPERS = {
    kept_by_grad: X * 2,
    kept_by_vjp: X * 2,
    kept_by_jvp: X * 2,
    kept_by_vjp_then_pulled_back: X * 2,
    kept_argument: X,
}
# The same for a wrapper inside a wrapper; most uses raise an internal assertion in torch.func.
NESTED_WRAPPERS = {kept_by_two_grads: X * X, kept_by_grad_of_jvp: X * X}
ALL_WRAPPERS = WRAPPERS | NESTED_WRAPPERS

LOOKS = {
    "shape": lambda tf, t: (t.shape, t.stride(), t.dtype, len(t), t.numel(), t.device),
    "repr": lambda tf, t: repr(t),
    "requires_grad": lambda tf, t: (t.requires_grad, t.is_leaf, t.grad_fn is None),
}

USES = {
    "item": lambda tf, t: (t[0].item(), float(t.sum()), bool(t.sum() > 0), t.tolist()),
    "arithmetic": lambda tf, t: (t + 1, t * t, X * t, t.sum(), t @ X, torch.stack([t, X])),
    "view": lambda tf, t: (t.view(3, 1), t[1:], t.detach()),
    "written into another": lambda tf, t: torch.zeros(3).copy_(t).add_(t),
    "with plain autograd": lambda tf, t: torch.autograd.grad(
        (t * (w := X.clone().requires_grad_())).sum(), w
    ),
    "captured by grad": lambda tf, t: tf.grad(lambda x: (x * t).sum())(X),
    "captured by vjp": lambda tf, t: tf.vjp(lambda x: x * t, X)[1](X),
    "captured by jvp": lambda tf, t: tf.jvp(lambda x: x * t, (X,), (X,)),
    "captured by vmap": lambda tf, t: tf.vmap(lambda x: x * t)(X),
    "argument of grad": lambda tf, t: tf.grad(lambda x: (x**2).sum())(t),
    "argument of grad, not chosen": lambda tf, t: tf.grad(lambda x, y: (x * y).sum())(X, t),
    "argument of vjp": lambda tf, t: tf.vjp(torch.sin, t)[1](t),
    "argument of jvp": lambda tf, t: tf.jvp(torch.sin, (t,), (t,)),
    "argument of vmap": lambda tf, t: tf.vmap(torch.sin)(t),
    "argument of vmap, not batched": lambda tf, t: tf.vmap(torch.mul, (0, None))(X, t),
    "deep inside": lambda tf, t: tf.vmap(
        tf.grad(lambda x: tf.jvp(torch.mul, (x, t[0]), (x, x))[1])
    )(X),
    "returned from grad as aux": lambda tf, t: tf.grad(lambda x: (x.sum(), t + 0), has_aux=True)(X),
    "returned from vmap": lambda tf, t: tf.vmap(lambda x: t + 0)(X),
    "returned from jvp": lambda tf, t: tf.jvp(lambda x: t + 0, (X,), (X,)),
}


@pytest.mark.parametrize("keep", ALL_WRAPPERS)
def test_level_of_an_escaped_wrapper_is_dead(keep):
    assert is_dead(keep(tl))


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
@pytest.mark.parametrize("keep", ALL_WRAPPERS)
def test_a_wrapper_looks_as_torch_funcs(keep, look):
    agree(lambda tf: look(tf, keep(tf)))


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("keep", WRAPPERS)
def test_a_wrapper_acts_as_torch_funcs(keep, use):
    agree(lambda tf: use(tf, keep(tf)))


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize(("keep", "value"), ALL_WRAPPERS.items())
def test_a_wrapper_acts_as_the_value_in_it(keep, value, use):
    assert_same(use(tl, keep(tl)), use(tl, value))


@pytest.mark.parametrize("keep", ALL_WRAPPERS)
def test_a_wrapper_is_a_constant_to_plain_autograd(keep):
    with pytest.raises(RuntimeError, match="does not require grad"):
        keep(tl).sum().backward()


# torch.func fails with an internal assertion.
@pytest.mark.parametrize("keep", ALL_WRAPPERS)
def test_a_wrapper_may_be_returned_from_vjp(keep):
    escaped = keep(tl)
    output, vjp_fn = tl.vjp(lambda x: escaped, X)
    assert level_of(output) == -1
    assert vjp_fn(X)[0].tolist() == [0.0] * 3


@pytest.mark.parametrize("keep", WRAPPERS)
def test_a_wrapper_kept_by_one_library_is_used_by_the_other(keep):
    expected = keep(torch.func) + X
    for keeper, user in ((tl, torch.func), (torch.func, tl)):
        escaped = keep(keeper)
        assert torch.equal(user.grad(lambda x, t=escaped: (x * (t + X)).sum())(X), expected)


@pytest.mark.parametrize("keep", [kept_by_grad, kept_by_vjp, kept_by_jvp, kept_argument])
def test_a_wrapper_of_an_inner_level_is_its_value_at_the_outer_level(keep):
    def call(tf):
        def f(x):
            return (keep(tf, x) * x).sum()

        return tf.grad(f)(X), tf.jvp(f, (X,), (X,)), tf.vmap(f)(torch.stack([X, X]))

    agree(call)


def test_wrapper_is_distinct_from_a_later_transform_at_its_level():
    """The later grad, at the same level, must not differentiate with respect to the escaped
    tensor."""
    escaped = kept_argument(tl)
    gradient = tl.grad(lambda x: (x * 3 + escaped * escaped).sum())(X)
    assert gradient.tolist() == [3.0] * 3


def test_tensor_escaped_by_an_exception_is_dead():
    kept = []

    def f(x):
        kept.append(x)
        raise ZeroDivisionError

    for call in (
        lambda: tl.grad(f)(X),
        lambda: tl.jvp(f, (X,), (X,)),
        lambda: tl.vjp(lambda x: tl.grad(f)(x), X),
    ):
        with pytest.raises(ZeroDivisionError):
            call()
    assert all(is_dead(tensor) for tensor in kept)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_a_batched_tensor_looks_as_torch_funcs(look):
    agree(lambda tf: look(tf, kept_by_vmap(tf, torch.ones(2, 3))))


def in_a_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


OUTSIDE = {
    "an operator": lambda t: t.sin(),
    "beside another": lambda t: X + t,
    "a view": lambda t: t.unsqueeze(0),
    "a random operator": torch.bernoulli,
    "an operator of lists": lambda t: torch.stack([t, t]),
    "of a list in place": lambda t: torch._foreach_add_([t], 1.0),
    "a composite": lambda t: torch.nn.functional.linear(t, torch.ones(2, 3)),
    "an index": lambda t: t[0],
    "a mask": lambda t: t[t > 0],
    "a write": lambda t: t.add_(1),
    "y[i] = v": lambda t: t.__setitem__(0, 1.0),
    "written into another": lambda t: torch.zeros(3).copy_(t),
    "a comparison": lambda t: t == 1,
    "bool": lambda t: bool(t.sum()),
    "item": lambda t: t[0].item(),
    "a loop": list,
    "equal": lambda t: torch.equal(t, t),
    "allclose": lambda t: torch.allclose(t, t),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.detach().numpy(),
    "to": lambda t: t.to(torch.float64),
    "detach": lambda t: t.detach(),
    "a parameter": lambda t: torch.nn.Parameter(t),
    "new_zeros": lambda t: t.new_zeros(2),
    "with plain autograd": lambda t: (t * X.clone().requires_grad_()).sum(),
    "without grad": lambda t: torch.no_grad()(torch.sin)(t),
    "in inference mode": lambda t: torch.inference_mode()(torch.sin)(t),
    "in another thread": lambda t: in_a_thread(t.sin),
    "in torch.func's grad": lambda t: torch.func.grad(lambda x: (x * t).sum())(X),
    "in torch.func's jvp": lambda t: torch.func.jvp(lambda x: x * t, (X,), (X,)),
    "in torch.func's vmap": lambda t: torch.func.vmap(lambda x: x * t)(torch.ones(2, 3)),
    "in functionalize of torch.func's": lambda t: torch.func.functionalize(lambda x: x * t)(X),
}


IN_TORCH_FUNC_ALONE = ("in torch.func's grad", "in torch.func's jvp")


def kept_by_vmap_of_grad(tf, x=X):
    kept = []
    tf.vmap(tf.grad(lambda y: kept.append(y * 2) or y.sum()))(x)
    return kept[0]


def kept_by_grad_of_vmap(tf, x=X):
    kept = []
    tf.grad(lambda x: tf.vmap(lambda y: kept.append(y * 2) or y.sum())(x).sum())(x)
    return kept[0]


@pytest.mark.parametrize("use", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("keep", [kept_by_vmap, kept_by_vmap_of_grad, kept_by_grad_of_vmap])
def test_a_batched_tensor_used_outside_every_transform_is_refused(keep, use):
    """In torch.func, a vmap of the same level took it for its own and gave a wrong result."""
    if keep is kept_by_vmap_of_grad and use in (OUTSIDE[name] for name in IN_TORCH_FUNC_ALONE):
        pytest.skip("torch.func's grad meets grad's wrapper first, and it is none of ours")
    escaped = keep(tl, torch.rand(2, 3))
    with pytest.raises(RuntimeError, match=r"torchlayers: a tensor batched by vmap \(level [12]\)"):
        use(escaped)


def test_the_error_names_the_operator_and_the_line():
    escaped = kept_by_vmap(tl, torch.ones(2, 3))
    with pytest.raises(RuntimeError) as error:
        escaped.exp()
    assert str(error.value) == (
        "torchlayers: a tensor batched by vmap (level 1) was used by aten::exp outside that "
        "transform, which has ended or is another thread's. Return it from the function instead "
        f"of keeping it. In test_escaped.py:{error.traceback[-1].lineno + 1}, `escaped.exp()`."
    )


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda t: torch.save(t, io.BytesIO())]
)
def test_a_batched_tensor_is_not_copied_outside(copied):
    with pytest.raises(NotImplementedError, match=r"a tensor batched by torchlayers\.vmap"):
        copied(kept_by_vmap(tl, torch.ones(2, 3)))


@pytest.mark.parametrize(
    ("keep", "shown"),
    [
        (kept_by_vmap, "BatchedTensor(lvl=1, bdim=0, value="),
        (kept_by_grad, "GradTrackingTensor(lvl=-2, value="),
        (kept_by_vmap_of_grad, "GradTrackingTensor(lvl=-2, value="),
        (kept_by_grad_of_vmap, "BatchedTensor(lvl=2, bdim=0, value="),
        (lambda tf, x: kept_by_functionalize(x), "FunctionalTensor(lvl=1, value="),
    ],
    ids=["vmap", "grad", "vmap of grad", "grad of vmap", "functionalize"],
)
def test_escaped_tensor_prints_as_torch_prints_it(keep, shown):
    escaped = keep(tl, torch.ones(2, 3))
    assert repr(escaped).startswith(shown)
    assert in_a_thread(lambda: str(escaped)).startswith(shown)


def test_tensor_inside_its_transform_does_not_print_as_escaped():
    printed = []
    nest = tl.functionalize(tl.vmap(tl.grad(lambda x: printed.append(repr(x)) or x.sum())))
    nest(torch.ones(2, 3))
    assert "BatchedTensor(lvl=2" in printed[0]
    assert "escaped" not in printed[0]


def kept_by_functionalize(x=X, f=lambda y: y * 2):
    kept = []
    tl.functionalize(lambda y: kept.append(f(y)) or y + 1)(x)
    return kept[0]


def written(y):
    z = y * 1
    z[1:].mul_(2)
    return z


@pytest.mark.parametrize("use", [*USES.values(), lambda tf, t: t.numpy().tolist()])
@pytest.mark.parametrize(
    ("f", "value"),
    [(lambda y: y * 2, X * 2), (lambda y: y, X), (written, X * torch.tensor([1.0, 2.0, 2.0]))],
    ids=["a result", "the argument", "written to"],
)
def test_a_functional_tensor_acts_as_the_value_in_it(f, value, use):
    """Its numpy() used to be uninitialized memory."""
    assert_same(use(tl, kept_by_functionalize(f=f)), use(tl, value), rounded=True)


def used_outside(outer, use):
    """The error of using a tensor escaped from an inner vmap inside `outer`, around that vmap."""

    def f(x):
        return use(kept_by_vmap(tl, torch.ones(2, 3)), x)

    with pytest.raises(RuntimeError) as error:
        outer(f)
    assert tl.current_stack() == ()
    return str(error.value)


OUTER = {
    "grad": lambda f: tl.grad(f)(X),
    "vjp": lambda f: tl.vjp(f, X),
    "jvp": lambda f: tl.jvp(f, (X,), (X,)),
    "vmap": lambda f: tl.vmap(f)(torch.ones(4, 3)),
}


@pytest.mark.parametrize(
    "use",
    [
        lambda escaped, x: (escaped * x).sum(),
        lambda escaped, x: torch.cat([x, escaped]).sum(),
        lambda escaped, x: escaped.sum(),
        lambda escaped, x: x.clone().add_(escaped).sum(),
    ],
    ids=["with the argument", "in a list", "alone", "written into another"],
)
@pytest.mark.parametrize("kind", OUTER)
def test_a_batched_tensor_used_around_its_vmap_is_refused_by_name_and_level(kind, use):
    layer = "grad" if kind == "vjp" else kind
    assert used_outside(OUTER[kind], use).startswith(
        f"torchlayers: a tensor batched by vmap (level 2) was used in {layer} (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it. In "
        "test_escaped.py:"
    )


def test_a_batched_tensor_returned_around_its_vmap_is_refused():
    assert used_outside(OUTER["vmap"], lambda escaped, x: escaped).startswith(
        "torchlayers: a tensor batched by vmap (level 2) was used in vmap (level 1), outside that "
        "transform. Return it from the inner function instead of keeping it."
    )


@pytest.mark.parametrize("kind", ["grad", "jvp"])
def test_a_batched_tensor_used_after_its_vmap_is_refused_by_grad_and_jvp(kind):
    escaped = kept_by_vmap(tl)
    for use in (lambda x: (x * escaped).sum(), lambda x: escaped.sum()):
        with pytest.raises(RuntimeError, match=rf"batched by vmap \(level 1\) was used in {kind}"):
            OUTER[kind](use)


def test_a_batched_tensor_as_an_argument_after_its_vmap_is_refused():
    escaped = kept_by_vmap(tl)
    for call in (lambda: tl.grad(torch.sin)(escaped), lambda: tl.vjp(torch.sin, escaped)):
        with pytest.raises(RuntimeError, match=r"batched by vmap \(level 1\) was used in grad"):
            call()


@pytest.mark.parametrize(
    ("outer", "name"),
    [(OUTER["grad"], "grad"), (OUTER["jvp"], "jvp"), (OUTER["vmap"], "vmap")],
)
def test_a_live_wrapper_used_around_its_transform_is_refused_by_level(outer, name):
    def inner(y):
        with temporarily_pop_interpreter_stack():
            return y * 2

    with pytest.raises(RuntimeError) as error:
        outer(lambda x: tl.grad(inner)(x.sum()))
    assert str(error.value).startswith(
        f"torchlayers: a tensor of grad or jvp (level 2) was used in {name} (level 1), outside "
        "that transform. Return it from the inner function instead of keeping it."
    )
    assert tl.current_stack() == ()


def kept_from_torchs_rule():
    kept = []
    tl.vmap(lambda y: kept.append(torch.linalg.cross(y, y.flip(0))) or y)(torch.ones(3, 3))
    return kept[0]


@pytest.mark.parametrize("size", [3, 7])
@pytest.mark.parametrize("keep", [lambda: kept_by_vmap(tl), kept_from_torchs_rule])
def test_batched_tensor_of_an_ended_vmap_is_rejected_in_a_later_vmap(keep, size):
    """Whether the later vmap has the same size or another."""
    escaped = keep()
    uses = {
        "without boxes": lambda x: x * escaped,
        "a rule of ours": lambda x: torch.stack([x[0], escaped.sum()]),
        "torch's rule": lambda x: torch.linalg.cross(x.sum().expand(3), escaped.expand(3)),
        "below": lambda x: tl.grad(lambda y: (y * escaped.sum()).sum())(x),
        "argument of grad": lambda x: tl.grad(torch.sum)(escaped),
        "returned": lambda x: escaped,
    }
    for use in uses.values():
        with pytest.raises(RuntimeError, match=r"batched by vmap \(level 1\) was used in"):
            tl.vmap(use)(torch.ones(size, 2))
    assert tl.current_stack() == ()


def test_batched_tensor_made_by_torch_is_recognized_by_its_batch_size():
    """A tensor made by torch's own functions carries no other information about its vmap."""
    kept = []
    tl.vmap(lambda x: kept.append(torch._C._functorch._add_batch_dim(X, 0, 1)) or x)(X)
    with pytest.raises(RuntimeError, match=r"batched by vmap \(level 1\) was used in vmap"):
        tl.vmap(lambda x: x + kept[0])(torch.ones(7, 2))


# Writes. Writing to the wrapper has to have the same effect as writing to its value.
WRITES = {
    "add_": lambda t: t.add_(1),
    "mul_ by itself": lambda t: t.mul_(t),
    "copy_": lambda t: t.copy_(X),
    "a view's": lambda t: t[1:].exp_(),
    "by index": lambda t: t.__setitem__(1, 5.0),
    "by mask": lambda t: t.masked_fill_(X > 0.7, 2.0),
    "without a rule": lambda t: t.index_reduce_(0, torch.tensor([0, 2]), X[:2], "amax"),
    "out=": lambda t: torch.mul(X, 3, out=t),
    "a list's": lambda t: torch._foreach_add_([t], 2.0),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:index_reduce")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    "outer",
    [
        lambda f: tl.grad(f)(X),
        lambda f: tl.vjp(f, X)[0],
        lambda f: tl.jvp(f, (X,), (torch.ones(3),)),
        lambda f: tl.vmap(f)(torch.stack([X, 2 * X])),
        lambda f: tl.vmap(tl.grad(f))(torch.stack([X, 2 * X])),
        lambda f: tl.jvp(tl.grad(f), (X,), (torch.ones(3),)),
        lambda f: f(X),
    ],
    ids=["grad", "vjp", "jvp", "vmap", "vmap(grad)", "jvp(grad)", "nothing"],
)
@pytest.mark.parametrize("keep", ["grad", "jvp", "grad of grad"])
def test_a_write_to_a_wrapper_is_a_write_to_its_value(outer, write, keep):
    def keeper(z, kept):
        kept.append(z)
        return z.sum()

    inner = {
        "grad": lambda kept: tl.grad(lambda z: keeper(z, kept)),
        "jvp": lambda kept: lambda y: tl.jvp(lambda z: keeper(z, kept), (y,), (y,)),
        "grad of grad": lambda kept: tl.grad(lambda z: tl.grad(lambda w: keeper(w, kept))(z).sum()),
    }[keep]

    def f(x, through_wrapper):
        kept, y = [], x * 2
        inner(kept)(y)
        write(kept[0] if through_wrapper else y)
        return (y * y).sum()

    expected = outcome(outer, lambda x: f(x, False))
    if isinstance(expected, str):
        assert outcome(outer, lambda x: f(x, True)) == expected
    else:
        assert_same(outcome(outer, lambda x: f(x, True)), expected)


def outcome(outer, f):
    try:
        return outer(f)
    except RuntimeError as error:
        return str(error).split(" In ")[0]


def test_a_write_to_a_wrapper_of_a_captured_tensor_is_refused_as_to_the_tensor():
    escaped = kept_argument(tl, X.clone())
    with pytest.raises(RuntimeError, match="mutate a captured tensor"):
        tl.grad(lambda x: (escaped.add_(x) * x).sum())(X)
