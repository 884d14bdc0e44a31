"""How a tensor that was created and written inside vmap appears to the rest of the program."""

import gc
import threading
import weakref

import pytest
import torch
import torch.func
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import torchlayers as tl
from tests.in_place_under_vmap.reference import loop, same

X = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]], dtype=torch.float64)
Y = torch.tensor([[0.5, 1.0, -1.0], [2.0, 0.1, 0.2], [1.0, 1.0, 0.0]], dtype=torch.float64)


def zeros() -> Tensor:
    return torch.zeros(3, dtype=torch.float64)


def written(x: Tensor) -> Tensor:
    y = zeros()
    y[0] = x[0]
    return y


# The programs of pytorch#103329 and functorch#1025


def test_a_window_is_moved_over_a_sequence() -> None:
    def moving_sums(x: Tensor) -> Tensor:
        sums = torch.zeros(x.shape[0] - 1, dtype=x.dtype)
        for i in range(sums.shape[0]):
            sums[i] = x[i : i + 2].sum()
        return sums

    assert_close(tl.vmap(moving_sums)(X), X[:, :-1] + X[:, 1:])


def test_a_matrix_is_put_together_of_a_vectors_entries() -> None:
    def cross(v: Tensor) -> Tensor:
        matrix = torch.zeros(3, 3, dtype=v.dtype)
        matrix[0, 1], matrix[0, 2] = -v[2], v[1]
        matrix[1, 0], matrix[1, 2] = v[2], -v[0]
        matrix[2, 0], matrix[2, 1] = -v[1], v[0]
        return matrix

    other = Y[0]
    assert_close(tl.vmap(cross)(X) @ other, torch.linalg.cross(X, other.expand(2, 3)))
    jacobian = tl.vmap(tl.jacrev(lambda v: cross(v) @ other))(X)
    assert_close(jacobian, -cross(other).expand(2, 3, 3))


# Appearance


def test_created_tensor_looks_like_one_sample() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.zeros(2, 3, dtype=x.dtype)
        before = y.t()
        y[0] = x
        assert (y.shape, y.stride(), before.stride()) == ((2, 3), (3, 1), (1, 3))
        assert (y.dtype, y.is_contiguous(), y.requires_grad) == (x.dtype, True, x.requires_grad)
        return y

    tl.vmap(f)(X)
    tl.vmap(tl.grad(lambda x: f(x).sum()))(X)
    tl.grad(lambda batch: tl.vmap(f)(batch).sum())(X)


def test_new_tensor_prints_as_batched(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Tensor) -> Tensor:
        y = zeros()
        view = y[:1]
        print(y)
        y[0] = x[0]
        print(y)
        print(view)
        return y

    tl.vmap(f)(X)
    plain, whole, view = capsys.readouterr().out.replace("\n", "").split("tensor(")[1:]
    assert plain.startswith("[0., 0., 0.], dtype=torch.float64)BatchedTensor(lvl=1, bdim=0, value=")
    assert whole.startswith("[[ 1.,  0.,  0.],            [-1.,  0.,  0.]]")
    assert view.startswith("[[ 1.],            [-1.]]")
    tl.vmap(tl.grad(lambda x: f(x).sum()))(X)
    assert "GradTrackingTensor(lvl=2, value=\n    BatchedTensor(" in capsys.readouterr().out


def test_unwritten_tensor_stays_shared_by_all_samples() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, z = zeros(), zeros()
        z += 1
        y[0] = x[0]
        assert z.tolist() == [1.0, 1.0, 1.0]
        return y, z, z[1:] * 2

    y, z, twice = tl.vmap(f)(X)
    assert (y.stride(), z.stride(), twice.stride()) == ((3, 1), (0, 1), (0, 1))
    _, z, twice = tl.vmap(f, out_dims=(0, None, None))(X)
    assert_close((z, twice), (torch.ones_like(z), 2 * torch.ones_like(twice)))
    assert (z.dim(), twice.dim()) == (1, 1)


def test_written_tensor_depends_on_the_batch() -> None:
    with pytest.raises(tl.errors.DimensionError, match="out_dim is None depends on the batch"):
        tl.vmap(written, out_dims=None)(X)
    assert_close(tl.vmap(written, out_dims=-1)(X), loop(written, X).t())


def test_each_sample_is_resized() -> None:
    def shorter(x: Tensor) -> Tensor:
        return x.clone().resize_(2)

    def longer(x: Tensor) -> Tensor:
        return x.clone().resize_(2, 2).view(-1)[:3]

    def made(x: Tensor) -> Tensor:
        y = zeros()
        y += x
        return y.detach().resize_(2)

    for f in (shorter, longer, made):
        assert_close(tl.vmap(f)(X), loop(f, X))
        assert_close(tl.vmap(tl.vmap(f))(X[None]), loop(f, X)[None])


# Values that do not change


def test_earlier_reads_keep_their_value_and_gradient() -> None:
    def f(w: Tensor, x: Tensor) -> Tensor:
        y = w * 2
        squared, detached = (y**2).sum(), y.detach()
        y = y * 1
        y[0] = x[0]
        return squared * y.sum() * detached[1]

    expected = torch.func.grad(lambda w: sum(f(w, x) for x in X))(Y[0])
    assert_close(tl.grad(lambda w: tl.vmap(lambda x: f(w, x))(X).sum())(Y[0]), expected)


def test_a_write_to_what_a_gradient_needs_is_an_error() -> None:
    def f(w: Tensor, x: Tensor) -> Tensor:
        y = torch.ones(3, dtype=w.dtype)
        product = (y * w).sum()
        y[0] = x[0]
        return product

    for call in (
        lambda: tl.vmap(lambda x: tl.grad(f)(Y[0], x))(X),
        lambda: tl.grad(lambda w: tl.vmap(lambda x: f(w, x))(X).sum())(Y[0]),
        lambda: tl.grad(lambda w: sum(f(w, x) for x in X))(Y[0]),
    ):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call()


def test_writes_agree_with_a_loop_in_modes() -> None:
    x = X.clone().requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = tl.vmap(written)(x)
        assert not result.requires_grad
        assert_close(result, loop(written, X))

    def without_history(x: Tensor) -> Tensor:
        y = x * 1 + zeros()
        with torch.no_grad():
            y[0] = x[1]
        return y

    (gradient,) = torch.autograd.grad(tl.vmap(without_history)(x).sum(), x)
    assert_close(gradient, torch.ones_like(x))


# Escaping tensors, and errors


def test_values_for_the_places_of_a_mask_are_refused() -> None:
    def f(x: Tensor) -> Tensor:
        y = zeros()
        y[x > 0] = x[:2]
        return y

    for call in (tl.vmap(f), tl.vmap(tl.grad(lambda x: f(x).sum()))):
        with pytest.raises(RuntimeError, match="a value of 2 elements, one per selected position"):
            call(X)


def test_escaped_tensor_is_never_read_as_unwritten() -> None:
    kept: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        y = zeros()
        kept.extend([y, y[1:]])
        y[0] = x[0]
        for read in (y.tolist, y.numpy, y.data_ptr):
            with pytest.raises(RuntimeError, match=r"made inside vmap|have storage"):
                read()
        return y

    tl.vmap(f)(X)
    for tensor in kept:
        for use in (
            tensor.sin,
            tensor.tolist,
            tensor.clone,
            lambda t=tensor: tl.grad(torch.sum)(t),
        ):
            with pytest.raises(RuntimeError, match="made inside vmap"):
                use()


def test_an_exception_leaves_nothing_behind() -> None:
    captured = zeros()

    def f(x: Tensor) -> Tensor:
        y = zeros()
        y += x
        captured.add_(1.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tl.vmap(f)(X)
    assert tl.current_stack() == ()
    assert_close(captured, torch.ones_like(captured))
    assert_close(tl.vmap(written)(X), loop(written, X))


def test_an_inner_function_has_not_made_what_the_outer_made() -> None:
    def of_outer(x: Tensor) -> Tensor:
        y = zeros()
        tl.vmap(lambda z: y.add_(x).sum() + z)(Y)
        return y

    assert_close(tl.vmap(of_outer)(X), X)

    def of_inner(x: Tensor) -> Tensor:
        y = zeros()
        return tl.vmap(lambda z: y.add_(z))(Y)

    with pytest.raises(RuntimeError, match="it is `y`, of shape \\(3,\\), which <lambda> captured"):
        tl.vmap(of_inner)(X)


def test_a_function_that_hands_out_its_argument_has_not_made_it() -> None:
    class Same(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x

        @staticmethod
        def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
            pass

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient

    captured = zeros()
    with pytest.raises(RuntimeError, match="can't write a batched value"):
        tl.vmap(lambda x: Same.apply(captured).add_(x))(X)
    assert_close(captured, zeros())


# Other tests


def test_torch_funcs_vmap_around_and_inside() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        made = zeros()
        view = made[1:]
        made[0] = x[0]
        view += y[:2]
        made *= x
        return made

    expected = loop(lambda x: loop(lambda y: f(x, y), Y), X)
    assert_close(torch.func.vmap(lambda x: tl.vmap(lambda y: f(x, y))(Y))(X), expected)
    assert_close(tl.vmap(lambda x: torch.func.vmap(lambda y: written(x) + y)(Y))(X),
                 loop(lambda x: loop(lambda y: written(x) + y, Y), X))  # fmt: skip


@pytest.mark.parametrize("outer", [torch.func, tl])
@pytest.mark.parametrize("pushed", [torch.func, tl])
@pytest.mark.parametrize("samples", [1, 2])
def test_a_copy_in_a_jvp_of_torch_func_has_a_tangent_of_its_own(samples, pushed, outer) -> None:
    def f(x: Tensor) -> Tensor:
        made = torch.zeros_like(x).copy_(x)
        made.mul_(2)
        return made * x.cos()

    def of_samples(x: Tensor) -> Tensor:
        return tl.vmap(lambda t: f(x) * t)(torch.ones(samples, dtype=x.dtype))

    def tangent(x: Tensor) -> Tensor:
        return pushed.jvp(of_samples, (x,), (x.sin(),))[1]

    slope = 2 * (X.cos() - X * X.sin()) * X.sin()
    assert_close(outer.vmap(tangent)(X), slope[:, None].expand(-1, samples, -1))


def test_random_numbers_in_place() -> None:
    def f(x: Tensor) -> Tensor:
        y = zeros()
        y.normal_()
        y[0] = x[0]
        return y

    different = tl.vmap(f, randomness="different")(X)
    assert (different[0, 1:] != different[1, 1:]).all()
    assert_close(different[:, 0], X[:, 0])
    equal = tl.vmap(f, randomness="same")(X)
    assert_close(equal[0, 1:], equal[1, 1:])


def test_writes_on_threads_are_independent() -> None:
    results: dict[int, Tensor] = {}

    def work(i: int) -> None:
        for _ in range(20):
            results[i] = tl.vmap(tl.grad(lambda x: (written(x) ** 2).sum()))(X + i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        assert_close(results[i], torch.stack([2 * (x + i) * torch.eye(3)[0] for x in X]).double())


def test_recorded_and_linearized() -> None:
    expected = tl.vmap(written)(X)
    same(make_fx(tl.vmap(written))(X)(X + 1), tl.vmap(written)(X + 1))
    compiled = tl.compile(tl.vmap(tl.grad(lambda x: (written(x) ** 2).sum())))
    for batch in (X, X + 1, X - 2):
        same(compiled(batch), tl.vmap(tl.grad(lambda x: (written(x) ** 2).sum()))(batch))
    output, jvp_fn = tl.linearize(tl.vmap(written), X)
    assert_close(output, expected)
    assert_close(jvp_fn(X), expected)
    assert_close(tl.functionalize(tl.vmap(written))(X), expected)
    assert_close(tl.vmap(tl.functionalize(written))(X), expected)


def test_unreferenced_tensors_are_freed() -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def f(x: Tensor) -> Tensor:
        nonlocal most
        for _ in range(50):
            y = zeros()
            y += x
            result = y * 1
            alive.append(weakref.ref(y))
            del y
            most = max(most, sum(each() is not None for each in alive))
        return result

    tl.vmap(f)(X)
    gc.collect()
    assert most <= 1
