"""pure_callback and io_callback: Python code in transforms and compiled functions."""

import threading

import numpy as np
import pytest
import torch
from scipy import special

import torchlayers as tl
from torchlayers import ShapeDtypeStruct
from torchlayers.errors import (
    FunctionError,
    MissingDerivativeError,
    StructureError,
    TransformError,
)
from torchlayers.fx import callbacks

F64 = torch.float64
X = torch.linspace(0.1, 2, 12, dtype=F64).reshape(3, 4)


def scipys(function, x):
    return torch.as_tensor(function(x.numpy()))


class Counted:
    """SciPy's j0 as a callback, and the shapes with which it was called."""

    def __init__(self, method="sequential"):
        self.shapes, self.method = [], method

    def j0(self, x, shift):
        self.shapes.append((tuple(x.shape), tuple(shift.shape)))
        return special.j0(x.numpy()) + shift[(..., *[None] * (x.ndim - shift.ndim))].numpy()

    def __call__(self, x, shift=torch.tensor(0.5, dtype=F64)):  # noqa: B008
        return tl.pure_callback(self.j0, x, x, shift, vmap_method=self.method)


RIGHT = scipys(special.j0, X) + 0.5


@pytest.mark.parametrize(
    ("method", "one", "two"),
    [
        ("sequential", [((4,), ())] * 3, [((), ())] * 12),
        ("expand_dims", [((3, 4), (1,))], [((4, 3), (1, 1))]),
        ("broadcast_all", [((3, 4), (3,))], [((4, 3), (4, 3))]),
    ],
)
def test_vmap_calls_it_by_the_method(method, one, two):
    f = Counted(method)
    torch.testing.assert_close(tl.vmap(f)(X), RIGHT)
    assert f.shapes == one
    f.shapes.clear()
    torch.testing.assert_close(tl.vmap(tl.vmap(f), 1, 1)(X), RIGHT)
    assert f.shapes == two
    torch.testing.assert_close(torch.func.vmap(f, 1, 1)(X), RIGHT)


@pytest.mark.parametrize("backend", ["replay", "inductor"])
def test_compiled_it_is_called_at_each_call(backend):
    f = Counted("expand_dims")
    compiled = tl.compile(tl.vmap(lambda x: f(x.sin()).cos()), backend=backend, check=False)
    for x in (X, 2 * X):
        f.shapes.clear()
        torch.testing.assert_close(compiled(x), (scipys(special.j0, x.sin()) + 0.5).cos())
        assert f.shapes == [((3, 4), (1,))]


def test_it_is_one_node_of_a_graph():
    graph = tl.make_graph(tl.vmap(Counted()))(X).graph
    assert [node.target for node in graph.nodes].count(callbacks.pure_callback) == 1


@tl.custom_jvp
def j0(x):
    return tl.pure_callback(lambda x: special.j0(x.numpy()), x, x)


@tl.custom_jvp
def j1(x):
    return tl.pure_callback(lambda x: special.j1(x.numpy()), x, x)


j0.defjvps(lambda t, y, x: -t * j1(x))
j1.defjvps(lambda t, y, x: t * (j0(x) - j1(x) / x))


@pytest.mark.parametrize("transform", [lambda f: f, lambda f: tl.compile(f, backend="replay")])
def test_custom_jvp_gives_it_derivatives(transform):
    second = transform(tl.vmap(tl.hessian(j0)))
    expected = scipys(special.j1, X) / X - scipys(special.j0, X)
    torch.testing.assert_close(second(X.flatten()), expected.flatten())


def test_results_are_of_any_kind_and_structure():
    like = {"a": ShapeDtypeStruct((), torch.float32), "b": (X, ShapeDtypeStruct((2,), torch.int64))}

    def f(x, *, names):
        return {"a": 3, "b": (x, np.array([len(name) for name in names]))}

    got = tl.pure_callback(f, like, X, names=["ab", "c"])
    assert got["a"].dtype == torch.float32
    assert got["b"][1].tolist() == [2, 1]
    got["b"][0].add_(1)
    torch.testing.assert_close(got["b"][0], X + 1)
    assert X[0, 0] == 0.1  # it has a copy


def test_it_runs_on_plain_tensors_with_autograd():
    def gradient(x):
        assert type(x) is torch.Tensor
        assert tl.current_stack() == ()
        x = x.requires_grad_()
        return torch.autograd.grad((x**2).sum(), x)[0] + tl.grad(torch.sum)(x)

    def f(x):
        return x * tl.pure_callback(gradient, x, x.detach())

    with torch.no_grad():
        torch.testing.assert_close(f(X), X * (2 * X + 1))
    torch.testing.assert_close(tl.vmap(tl.grad(lambda x: f(x).sum()))(X), 2 * X + 1)


def test_meta_tensors_and_shapes_do_without_it():
    f = Counted()
    assert f(X.to("meta")).device.type == "meta"
    assert tl.eval_shape(tl.vmap(f), X) == ShapeDtypeStruct((3, 4), F64)
    assert tl.vmap(f)(torch.ones(0, 4, dtype=F64)).shape == (0, 4)
    assert f.shapes == []


def test_a_callback_that_is_called_at_once_is_forgotten():
    before = len(callbacks._callbacks)
    tl.vmap(Counted())(X)
    assert len(callbacks._callbacks) == before


def test_one_function_is_kept_once_for_several_captures():
    f = Counted()
    tl.make_graph(f)(X)
    before = len(callbacks._callbacks)
    tl.make_graph(f)(X)
    assert len(callbacks._callbacks) == before


def of(f, like=X):
    return lambda x=X: tl.pure_callback(f, like, x)


@pytest.mark.parametrize(
    "run", [lambda f: f(X), lambda f: tl.compile(f, backend="replay")(X)], ids=["eager", "compiled"]
)
@pytest.mark.parametrize(
    ("f", "error", "words"),
    [
        (of(lambda x: x.sum()), FunctionError, r"<lambda> returned .* shape \(\) and .*float64"),
        (
            of(lambda x: x.float()),
            FunctionError,
            r"float32 as result 0, .*float64\. In test_ca",
        ),
        (
            of(lambda x: (x, x)),
            StructureError,
            r"<lambda> returned \(\*, \*\), .*\. In test_",
        ),
        (of(lambda x: x, "x"), StructureError, "must hold tensors or ShapeDtypeStructs, got str"),
        (of(3), TransformError, "f must be a function"),
        (lambda x: Counted("loop")(x), TransformError, "vmap_method must be 'sequential' or"),
    ],
)
def test_mistakes_are_refused(run, f, error, words):
    with pytest.raises(error, match=f"^torchlayers: pure_callback: .*{words}"):
        run(f)


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda f: tl.grad(lambda x: f(x).sum())(X),
        lambda f: tl.jvp(f, (X,), (X,)),
        lambda f: tl.vmap(tl.jacfwd(f))(X),
        lambda f: tl.jet(f, (X,), ((X,),)),
        lambda f: tl.laplacian(lambda x: f(x).sum())(X),
        lambda f: f(X.clone().requires_grad_()).sum().backward(),
        lambda f: torch.func.jvp(f, (X,), (X,)),
        lambda f: torch.func.jvp(torch.func.vmap(f), (X,), (X,)),
        lambda f: tl.compile(tl.grad(lambda x: f(x).sum()), backend="replay")(X),
    ],
)
@pytest.mark.parametrize("api", [tl.pure_callback, tl.io_callback])
def test_a_derivative_is_refused(api, differentiate):
    words = r"<lambda> is Python code without a derivative\. In test_callbacks.*custom_jvp"
    with pytest.raises(MissingDerivativeError, match=words):
        differentiate(lambda x: api(lambda x: x, x, x))
    assert tl.current_stack() == ()


@pytest.mark.parametrize("api", [tl.pure_callback, tl.io_callback])
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
def test_torch_funcs_reverse_mode_is_refused_in_words(api, transform):
    def f(x):
        return (api(lambda x: x.sin(), x, x) * x).sum()

    with pytest.raises(tl.errors.TransformError, match=f"can't go through {api.__name__}"):
        transform(f)(X)


@pytest.mark.parametrize("backend", [None, "replay", "inductor"])
def test_errors_of_the_callback_are_its_own(backend):
    def fails(x):
        raise KeyError("mine")

    def f(x):
        return 2 * tl.pure_callback(fails, x, x)

    run = tl.vmap(f) if backend is None else tl.compile(tl.vmap(f), backend=backend)
    with pytest.raises(KeyError, match="mine") as caught:
        run(X)
    assert caught.traceback[-1].name == "fails"


def test_threads_call_it_at_the_same_time():
    results = {}

    def work(i):
        results[i] = tl.vmap(Counted())(X * i)

    threads = [threading.Thread(target=work, args=(i,)) for i in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in (1, 2, 3):
        torch.testing.assert_close(results[i], scipys(special.j0, X * i) + 0.5)


# ---- io_callback


def steps(log):
    def f(x):
        tl.io_callback(lambda y: log.append(round(y.item(), 1)), None, x.sum())
        doubled = tl.io_callback(lambda x: log.append("second") or 2 * x, x, x.detach())
        return (x * doubled).sum()

    return f


LOGGED = [round(total, 1) for total in X.sum(1).tolist()] + ["second"] * 3


@pytest.mark.parametrize("backend", [None, "replay", "inductor"])
def test_effects_happen_at_each_call_in_order(backend):
    log = []
    f = tl.vmap(tl.grad(steps(log)))
    run = f if backend is None else tl.compile(f, backend=backend)
    for _ in range(2):
        log.clear()
        torch.testing.assert_close(run(X), 2 * X)
        assert log == LOGGED


def test_compiled_effects_are_neither_merged_nor_dropped_nor_moved():
    log = []

    def step(carry, x):
        tl.io_callback(lambda: log.append("step"), None)
        one = tl.io_callback(lambda: len(log), ShapeDtypeStruct((), torch.int64))
        other = tl.io_callback(lambda: len(log), ShapeDtypeStruct((), torch.int64))
        return carry + one - other, None

    compiled = tl.compile(lambda x: tl.scan(step, x.sum(), x)[0], backend="replay")
    for _ in range(2):
        log.clear()
        compiled(torch.ones(20))
        assert log == ["step"] * 20


def test_effects_of_constants_wait_for_the_call():
    log = []

    def f(x):
        tl.io_callback(lambda y: log.append(y.item()), None, torch.tensor(2.0))
        return x + 1

    graph = tl.make_graph(f)(X)
    assert log == []
    tl.compile(f, backend="replay")(X)
    assert log == [2.0]
    assert len(graph.graph.nodes) > 2


def test_a_memory_budget_calls_neither_again():
    log = []

    def f(x):
        y = tl.io_callback(lambda x: log.append("io") or x.sin(), x, x.detach())
        z = tl.pure_callback(lambda x: log.append("pure") or x.cos(), x, x.detach())
        return sum(((x * scale * y).sin() * z).exp().sum() for scale in (0.9, 1.0, 1.1, 1.2))

    x = torch.linspace(0, 1, 1000, dtype=F64)
    right = tl.grad(f)(x)
    assert log == ["io", "pure"]
    torch.testing.assert_close(tl.grad(f, memory_budget=0.8)(x), right)
    assert log == ["io", "pure"] * 2


def test_functions_with_a_variable_of_their_own_are_told_apart():
    def counter():
        count = 0

        def increased():
            nonlocal count
            count += 1
            return count

        like = ShapeDtypeStruct((), torch.int64)
        return tl.compile(lambda x: x + tl.io_callback(increased, like), backend="replay")

    one, other = counter(), counter()
    zero = torch.tensor(0)
    assert [one(zero).item(), one(zero).item(), other(zero).item()] == [1, 2, 1]


def test_a_branch_that_some_samples_take_is_refused():
    def f(x):
        return tl.cond(x.sum() > 2, steps([]), torch.sum, x)

    for run in (tl.vmap(f), tl.compile(tl.vmap(f), backend="replay")):
        with pytest.raises(TransformError, match=r"samples take differently.* In test"):
            run(X)


def test_a_branch_of_gathered_samples_calls_it_for_these():
    log = []
    shown = steps(log)
    tl.vmap(lambda x: tl.cond(x.sum() > 2, shown, torch.sum, x, batched="gather"))(X)
    assert log == [*LOGGED[1:3], "second", "second"]


def test_a_tensor_of_the_transform_that_it_captures_is_refused():
    def f(x):
        return tl.pure_callback(lambda: x + 1, x)

    said = r"<lambda> captures x, .* Pass it as an argument"
    for run in (tl.vmap(f), tl.grad(lambda x: f(x).sum())):
        with pytest.raises(TransformError, match=said):
            run(X)
    with pytest.warns(UserWarning, match=f"{said}.* it runs uncompiled"):
        torch.testing.assert_close(tl.compile(f, backend="replay")(X), f(X))


def test_export_and_saving_are_refused(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return Counted()(x)

    with pytest.raises(TransformError, match=r"pure_callback does not work in torch\.export"):
        torch.export.export(Model(), (X,))
    with pytest.raises(TransformError, match=r"export: .* calls a pure_callback or io_callback"):
        tl.compile(Counted()).lower(X).save(str(tmp_path / "f.pt2"))
