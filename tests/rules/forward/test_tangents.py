"""Tangents held by our rules or requested by torch: same tangents, views and writes either way."""

from collections.abc import Callable

import pytest
import torch
import torch.func
from torch import Tensor
from torch.autograd import forward_ad
from torch.profiler import profile
from torch.testing import assert_close

import torchlayers as tl

Function = Callable[[Tensor], Tensor]

X = torch.tensor([[0.3, 1.2, 0.7], [0.9, 0.1, 0.5]], dtype=torch.float64)
V = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], dtype=torch.float64)


def ask(dual: Tensor) -> Tensor:
    """Makes torch unpack the tangent, which is then stored in torch's form."""
    tangent = forward_ad.unpack_dual(dual).tangent
    assert tangent is not None
    return dual


def leave(dual: Tensor) -> Tensor:
    return dual


def writes_to_a_view(x: Tensor, look: Function) -> Tensor:
    y = look(x * 2)
    view = y[0]
    look(view)
    view.mul_(x[1])
    return look(y) * x


def writes_to_the_base(x: Tensor, look: Function) -> Tensor:
    y = look(x.sin())
    view = y[:, 1]
    y.add_(x)
    return look(view).exp()


def view_of_a_view(x: Tensor, look: Function) -> Tensor:
    y = x * x
    view = look(look(y.t())[1:])
    view.copy_(x.t()[:2])
    return y + look(view).sum()


def base_without_tangent(x: Tensor, look: Function) -> Tensor:
    base = torch.ones_like(x)
    view = base[0]
    base.mul_(x)
    return look(base) * look(view)


def written_to_itself(x: Tensor, look: Function) -> Tensor:
    look(x)
    y = x.clone()
    look(y).sin_()
    return y.mul_(look(x))


def without_a_rule(x: Tensor, look: Function) -> Tensor:
    square = look(x @ x.t()) / 4
    return torch.linalg.matrix_exp(square) @ look(x)


PROGRAMS = [
    writes_to_a_view,
    writes_to_the_base,
    view_of_a_view,
    base_without_tangent,
    written_to_itself,
    without_a_rule,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("wrapped", [lambda f: f, tl.vmap], ids=["alone", "around vmap"])
def test_tangent_is_the_same_for_torch_and_rules(program, wrapped) -> None:
    expected = torch.func.jvp(lambda x: program(x, leave), (X,), (V,))
    if wrapped is tl.vmap:
        x, v = torch.stack((X, X + 1)), torch.stack((V, V))
        f = tl.vmap(lambda x: program(x, leave))
        found = tuple(part[0] for part in tl.jvp(f, (x,), (v,)))
    else:
        found = tl.jvp(lambda x: program(x, leave), (X,), (V,))
        assert_close(tl.jvp(lambda x: program(x, ask), (X,), (V,)), expected)
    assert_close(found, expected)


def test_tangent_made_by_a_rule_can_be_unpacked() -> None:
    found = []

    def f(x: Tensor) -> Tensor:
        y = x.sin()
        found.append(tl.debug_unwrap(forward_ad.unpack_dual(y).tangent))
        return y

    tl.jvp(f, (X,), (V,))
    assert_close(found[0], X.cos() * V)


def test_an_escaped_dual_is_its_value() -> None:
    kept = []
    tl.jvp(lambda x: kept.append(x.sin()) or x, (X,), (V,))
    assert_close(kept[0] * 2, X.sin() * 2)
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(kept[0]).tangent is None
    again = tl.jvp(lambda x: x * kept[0], (X,), (V,))
    assert_close(again, (X * X.sin(), V * X.sin()))


@pytest.mark.parametrize("row", [0, 1])
def test_rows_of_a_larger_tensor_may_be_strided(row: int) -> None:
    def f(x: Tensor) -> Tensor:
        strided = x.as_strided((2,), (2,), x.storage_offset())
        return (x * strided.sum()).as_strided((3,), (0,))

    x, v = X[row], V[row]
    assert_close(tl.jvp(f, (x,), (v,)), torch.func.jvp(f, (x,), (v,)))


@pytest.mark.parametrize("f", [lambda x: x, lambda x: X], ids=["the argument", "a constant"])
def test_an_output_is_never_the_callers_tensor(f) -> None:
    value, _ = tl.jvp(f, (X,), (V,))
    assert value is not X


def test_a_tangent_that_has_to_be_copied_is_not_written_to() -> None:
    v = torch.ones(3, 2, dtype=torch.float64).t()  # column-major, while its primal is row-major
    before = v.clone()
    tl.jvp(lambda x: x.mul_(3), (X.clone(),), (v,))
    assert_close(v, before)


def test_columns_of_a_jacobian_are_not_copied() -> None:
    x = torch.rand(300)
    with profile() as profiled:
        tl.jacfwd(lambda x: x.sin().exp())(x)
    names = {event.name for event in profiled.events()}
    assert "aten::exp" in names
    assert not names & {"aten::copy_", "aten::_new_zeros_with_same_feature_meta", "aten::clone"}


WIDER = {
    "maximum": torch.maximum,
    "fmax": torch.fmax,
    "masked_fill": lambda x, number: x.masked_fill(x > 0, number),
    "clamp": lambda x, number: torch.clamp(x, max=number),
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "where": lambda x, number: torch.where(x > 0, x, number),
    "lerp": lambda x, number: torch.lerp(x, x.sin(), number.float()),
    "index_fill": lambda x, number: x.index_fill(0, torch.tensor([1]), number.float()),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("length", [5, 300])
@pytest.mark.parametrize("name", WIDER)
def test_a_tangent_has_the_dtype_of_its_result(name, length) -> None:
    x = torch.linspace(-1, 1, length)
    number = torch.tensor(0.3, dtype=torch.float64)
    f = WIDER[name]
    for value, tangent in (
        tl.jvp(f, (x, number), (x, number)),
        tl.jvp(lambda x: f(x, number), (x,), (x,)),
        tl.jvp(lambda number: f(x, number), (number,), (number,)),
    ):
        assert value.dtype == tangent.dtype == torch.float32
    columns = tl.jacfwd(f, (0, 1))(x, number)
    assert [column.dtype for column in columns] == [torch.float32, torch.float32]
    assert_close(columns, torch.func.jacfwd(f, (0, 1))(x, number), check_dtype=False)


def test_results_computed_with_a_tangent_have_its_dtype() -> None:
    x, number, weight = torch.rand(5), torch.tensor(0.5, dtype=torch.float64), torch.rand(5, 2)
    _, tangent = tl.jvp(lambda number: torch.maximum(x, number) @ weight, (number,), (number,))
    assert tangent.dtype == torch.float32


def test_a_real_part_has_a_real_tangent() -> None:
    x = torch.tensor([1.0, -2.0])
    factor = torch.tensor(0.5 + 1j, dtype=torch.complex128)
    value, tangent = tl.jvp(lambda c: (x * c).real, (factor,), (factor,))
    assert (value.dtype, tangent.dtype) == (torch.float32, torch.float32)


NEGATED = torch.tensor([1 + 2j, 3 - 1j, 0.5j]).conj().imag
CONJUGATED = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, 2 + 0j]]).mH
NESTS = {
    "jvp(jvp)": lambda tf, f, t: lambda x: tf.jvp(lambda x: tf.jvp(f, (x,), (t,))[1], (x,), (t,)),
    "jvp(grad(jvp))": lambda tf, f, t: (
        lambda x: tf.jvp(tf.grad(lambda x: tf.jvp(f, (x,), (t,))[1].abs().sum()), (x,), (t,))
    ),
    "vmap(jvp(jvp))": lambda tf, f, t: tf.vmap(
        lambda x: tf.jvp(lambda x: tf.jvp(f, (x,), (x,))[1], (x,), (x,))
    ),
    "jvp(jacfwd)": lambda tf, f, t: lambda x: tf.jvp(tf.jacfwd(f), (x,), (t,)),
    "jvp(jvp), with aux": lambda tf, f, t: (
        lambda x: tf.jvp(
            lambda x: tf.jvp(lambda x: (f(x), x), (x,), (t,), has_aux=True)[1], (x,), (t,)
        )
    ),
}


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("x", [NEGATED, CONJUGATED], ids=["negated", "conjugated"])
def test_nested_jvps_of_what_is_negated_or_conjugated_without_a_copy(x, nest) -> None:
    assert x.is_neg() or x.is_conj()
    if x.is_conj() and ("grad" in nest or "jac" in nest):
        pytest.skip("of complex numbers refused, here or by torch.func")
    t = torch.ones_like(x).contiguous()
    found = NESTS[nest](tl, torch.sin, t)(x)
    assert_close(found, NESTS[nest](torch.func, torch.sin, t)(x))


Z = torch.tensor([0.3 + 1j, -0.7 + 0.2j, 0.5 - 2j], dtype=torch.complex128)
T = torch.tensor([1 - 0.5j, 0.25 + 1j, -1 + 2j], dtype=torch.complex128)
VIEWED = {
    "real": lambda z: z.real * 2,
    "imag": lambda z: z.imag * 2,
    "view_as_real": lambda z: torch.view_as_real(z.resolve_conj()),
    "imag of conj": lambda z: z.conj().imag,
    "imag of a slice": lambda z: z[1:].imag.sin(),
    "real of a column": lambda z: z.view(3, 1).mT.real.exp(),
    "of a product": lambda z: (z * z).imag + z.real,
    "of a write": lambda z: (z * 1).mul_(z).imag,
    "a write to the imaginary part": lambda z: (
        (y := z * z).imag.mul_(z.real),
        torch.view_as_real(y),
    )[1],
}
BITS = {
    "a conjugate": (lambda z: z.conj().resolve_conj().conj(), lambda t: t),
    "a tangent that is a conjugate": (lambda z: z, lambda t: t.conj().resolve_conj().conj()),
    "two conjugates": (lambda z: z.conj(), lambda t: t.conj()),
    "a conjugate of a negative": (lambda z: torch._neg_view(z).conj(), lambda t: t),
    "a part of a conjugate": (lambda z: z.repeat_interleave(2)[::2].conj(), lambda t: t.flip(0)),
}


def resolved(z: Tensor) -> Tensor:
    return z.resolve_conj().resolve_neg().clone()


@pytest.mark.parametrize("bits", BITS.values(), ids=BITS)
@pytest.mark.parametrize("f", VIEWED.values(), ids=VIEWED)
def test_views_of_a_conjugate_are_views_of_its_tangent(
    f: Function, bits: tuple[Function, Function]
) -> None:
    z, t = bits[0](Z), bits[1](T)
    step = 1e-6
    slope = (f(resolved(z) + step * resolved(t)) - f(resolved(z) - step * resolved(t))) / (2 * step)
    value, tangent = tl.jvp(f, (z,), (t,))
    assert_close(value, f(resolved(z)))
    assert_close(tangent, slope)
    assert_close(tl.vmap(lambda z, t: tl.jvp(f, (z,), (t,)))(z[None], t[None])[1][0], slope)
    second = tl.jvp(lambda z: tl.jvp(f, (z,), (t,))[1], (z,), (t,))[1]
    assert_close(second, tl.jvp(lambda z: tl.jvp(f, (z,), (t,))[1], (resolved(z),), (t,))[1])
    by_t = tl.vjp(lambda t: tl.jvp(f, (z,), (t,))[1], t)[1](torch.ones_like(slope))[0]
    assert_close(by_t, tl.vjp(f, resolved(z))[1](torch.ones_like(slope))[0])


def test_the_callers_tangent_of_a_conjugate_is_not_written_to() -> None:
    t = T.clone()

    def f(z: Tensor) -> Tensor:
        part = z.imag
        z.mul_(2)
        return part * 1

    tangent = tl.jvp(f, (Z.conj().clone().conj().resolve_conj().conj(),), (t,))[1]
    assert_close(tangent, 2 * T.imag)
    assert_close(t, T)


PARTS = {
    "an element": lambda x: x[1],
    "a row": lambda x: x.view(2, 2)[1],
    "every other": lambda x: x[1::2],
    "turned": lambda x: x.view(2, 2).t(),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("outer", ["jvp", "jacfwd"])
def test_nested_jvps_at_a_part_of_memory(part, outer) -> None:
    x = part(torch.linspace(-1, 1, 4, dtype=torch.float64))

    def slope(x: Tensor) -> Tensor:
        return tl.jvp(torch.sin, (x,), (x.cos(),))[1]

    found = {
        "jvp": lambda: tl.jvp(slope, (x,), (torch.ones_like(x),))[1],
        "jacfwd": lambda: tl.jacfwd(slope)(x).reshape(x.numel(), x.numel()).sum(1).view(x.shape),
    }[outer]()
    assert_close(found, -2 * x.sin() * x.cos())
