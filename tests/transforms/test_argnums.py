"""Selecting entries of a dict by name: partition and combine, and names among argnums."""

from collections import OrderedDict
from types import MappingProxyType

import pytest
import torch
from torch import nn

import torchlayers as tl
from torchlayers.errors import ArgnumsError, DtypeError, StructureError

PARAMS = {"encoder.0.weight": 1, "encoder.0.bias": 2, "encoder.norm.weight": 3, "head.weight": 4}


@pytest.mark.parametrize(
    ("which", "chosen"),
    [
        ("encoder.*.weight", [1, 3]),
        ("*bias", [2]),
        ("*", [1, 2, 3, 4]),
        ("head.weight", [4]),
        (("*bias", "head.*"), [2, 4]),
        (["*.weight", "encoder*"], [1, 2, 3, 4]),
        ([], []),
        (lambda name, value: value > 2 or name.endswith("bias"), [2, 3, 4]),
    ],
)
def test_partition_and_combine(which, chosen):
    picked, rest = tl.partition(PARAMS, which)
    assert [*picked.values()] == chosen
    assert [*rest.values()] == [value for value in PARAMS.values() if value not in chosen]
    assert tl.combine(picked, rest) == PARAMS


def test_patterns_may_come_from_an_iterator():
    assert [*tl.partition(PARAMS, iter(["head*", "*bias"]))[0].values()] == [2, 4]
    by = tl.grad(lambda p: p["a"] * p["b"], tl.names(iter(["a"])))
    for _ in range(2):
        assert by({"a": torch.tensor(2.0), "b": torch.tensor(3.0)}) == {"a": 3}


@pytest.mark.parametrize("which", ["decoder.*", ("head.*", "Encoder.*"), "encoder"])
def test_a_pattern_that_matches_nothing_is_refused(which):
    with pytest.raises(ValueError, match=r"matches no name. The names are: encoder.0.weight,"):
        tl.partition(PARAMS, which)


def test_a_name_in_two_parts_is_refused():
    with pytest.raises(ValueError, match=r"\['head.weight'\] are in several"):
        tl.combine(PARAMS, {"head.weight": 1})
    assert tl.combine() == {}


# Names among argnums: each transform compared with one whose other entries are bound by hand

X = torch.linspace(-1, 1, 3, dtype=torch.float64)
P = {
    "b": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64),
    "a.bias": torch.tensor([1.5, 0.3, -0.7], dtype=torch.float64),
    "a.weight": torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64),
}
V = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def rows(p, x):
    return (p["a.weight"] * x).sin() * p["b"] + (p["a.bias"] * p["a.weight"]).exp() * x.sum()


def total(p, x):
    return rows(p, x).square().sum()


def products(f, argnums=0):
    """hvp as a transform, with V as the vector for each leaf."""

    def run(*primals):
        along = tl.grad(f, argnums)(*primals)
        vectors = torch.utils._pytree.tree_map(lambda _: V, along)
        return tl.hvp(f, primals, vectors, argnums=argnums)

    return run


TRANSFORMS = {
    "grad": (tl.grad, total),
    "grad_and_value": (tl.grad_and_value, total),
    "jacrev": (tl.jacrev, rows),
    "jacfwd": (tl.jacfwd, rows),
    "hessian": (tl.hessian, total),
    "hvp": (products, total),
}
KINDS = pytest.mark.parametrize("kind", TRANSFORMS)


def by_hand(transform, f, keys, by_x=False):
    """The transform with respect to the chosen entries, alone or together with x."""

    def of(chosen, x):
        return f({name: chosen.get(name, P[name]) for name in P}, x)

    chosen = {name: P[name] for name in P if name in keys}
    return transform(of, (0, 1))(chosen, X) if by_x else transform(lambda c: of(c, X))(chosen)


@KINDS
@pytest.mark.parametrize(
    ("which", "keys"),
    [
        ("a.*", {"a.weight", "a.bias"}),
        (["b"], {"b"}),
        (lambda name, value: name == "b" or value.sum() < 1, {"b", "a.weight"}),
        ("*", P.keys()),
    ],
)
def test_a_transform_by_names(kind, which, keys):
    transform, f = TRANSFORMS[kind]
    found = transform(f, tl.names(which))(P, X)
    torch.testing.assert_close(found, by_hand(transform, f, keys))
    by_entry = found[0] if kind == "grad_and_value" else found
    assert [*by_entry] == [name for name in P if name in keys]


@KINDS
@pytest.mark.parametrize("argnums", [(tl.names("a.*"), 1), (tl.names("a.*", -2), -1)])
def test_beside_other_arguments(kind, argnums):
    transform, f = TRANSFORMS[kind]
    expected = by_hand(transform, f, {"a.weight", "a.bias"}, by_x=True)
    torch.testing.assert_close(transform(f, argnums)(P, X), expected)


@KINDS
def test_of_an_argument_that_is_not_the_first(kind):
    transform, f = TRANSFORMS[kind]
    found = transform(lambda x, p: f(p, x), tl.names("b", argnum=1))(X, P)
    torch.testing.assert_close(found, by_hand(transform, f, {"b"}))
    found = transform(lambda x, p: f(p, x), (tl.names("b", -1),))(X, P)
    value = found[0] if kind == "grad_and_value" else found
    assert type(value) is tuple


@KINDS
def test_names_of_several_arguments(kind):
    transform, f = TRANSFORMS[kind]

    def of_two(p, q):
        return f({**p, **q}, X)

    first, second = tl.partition(P, "b")
    found = transform(of_two, (tl.names("*t", argnum=1), tl.names("*")))(first, second)

    def of_chosen(weight, first):
        return of_two(first, {**second, **weight})

    expected = transform(of_chosen, (0, 1))({"a.weight": P["a.weight"]}, first)
    torch.testing.assert_close(found, expected)


@KINDS
def test_the_function_gets_the_whole_dict_in_its_order(kind):
    transform, f = TRANSFORMS[kind]
    seen = []

    def looking(p, x):
        seen.append([*p])
        return f(p, x)

    transform(looking, tl.names("a.weight"))(P, X)
    assert all(order == [*P] for order in seen)
    assert seen


@pytest.mark.parametrize("mapping", [OrderedDict, MappingProxyType])
def test_other_mappings(mapping):
    found = tl.grad(total, tl.names("b"))(mapping(P), X)
    torch.testing.assert_close(found, by_hand(tl.grad, total, {"b"}))


def test_entries_may_be_pytrees():
    nested = {"layers": (X, [V]), "rest": X}
    found = tl.grad(lambda p: (p["layers"][0] * p["layers"][1][0] * p["rest"]).sum())(nested)
    some = tl.grad(
        lambda p: (p["layers"][0] * p["layers"][1][0] * p["rest"]).sum(), tl.names("layers")
    )(nested)
    torch.testing.assert_close(some, {"layers": found["layers"]})


def test_unchosen_entries_may_have_any_dtype():
    steps = {"w": X, "count": torch.tensor(3), "name": "net"}
    found = tl.grad(lambda p: (p["w"] * p["count"]).sum(), tl.names("w"))(steps)
    torch.testing.assert_close(found, {"w": torch.full_like(X, 3)})
    with pytest.raises(DtypeError, match=r"argument 0, \['count'\]"):
        tl.grad(lambda p: (p["w"] * p["count"]).sum(), tl.names(["w", "count"]))(steps)


@pytest.mark.parametrize("kind", ["grad", "grad_and_value", "jacrev", "jacfwd", "hvp"])
def test_with_aux(kind):
    def f(p, x):
        return total(p, x), [*p]

    if kind == "hvp":
        product, aux = tl.hvp(f, (P, X), {"b": V}, argnums=tl.names("b"), has_aux=True)
        torch.testing.assert_close(product, by_hand(products, total, {"b"}))
    else:
        transform = getattr(tl, kind)
        found, aux = transform(f, tl.names("b"), has_aux=True)(P, X)
        if kind == "grad_and_value":
            aux = aux[1]
        torch.testing.assert_close(found, by_hand(tl.grad, total, {"b"}))
    assert aux == [*P]


@pytest.mark.parametrize("kind", ["jacrev", "jacfwd", "hessian"])
@pytest.mark.parametrize("options", [{"chunk_size": 2}, {"chunk_size": 1}])
def test_options_are_passed_on(kind, options):
    transform, f = TRANSFORMS[kind]
    found = transform(f, tl.names("a.*"), **options)(P, X)
    torch.testing.assert_close(found, transform(f, tl.names("a.*"))(P, X))


def test_keyword_arguments():
    found = tl.grad(total, tl.names("b"))(P, x=X)
    torch.testing.assert_close(found, by_hand(tl.grad, total, {"b"}))


@KINDS
def test_under_other_transforms(kind):
    transform, f = TRANSFORMS[kind]
    samples = torch.stack([X, 2 * X])
    batched = tl.vmap(transform(f, tl.names("a.*")), in_dims=(None, 0))(P, samples)
    for i, x in enumerate(samples):
        one = transform(f, tl.names("a.*"))(P, x)
        row = torch.utils._pytree.tree_map(lambda leaf: leaf[i], batched)  # noqa: B023
        torch.testing.assert_close(row, one)


def test_nested_transforms_by_names():
    mixed = tl.jacrev(tl.grad(total, tl.names("b")), tl.names("a.weight"))(P, X)
    whole = tl.hessian(total)(P, X)
    torch.testing.assert_close(mixed, {"b": {"a.weight": whole["b"]["a.weight"]}})


def test_writes_to_unchosen_entries_stay_inside():
    """As for an argument that is not among argnums."""

    def writing(p, x):
        p["seen"].add_(p["w"].sum())
        return (p["w"] * p["seen"] * x).sum()

    expected = tl.grad(lambda w: (w * w.sum() * X).sum())(V)
    found = tl.grad(writing, tl.names("w"))({"w": V, "seen": torch.zeros_like(X)}, X)
    torch.testing.assert_close(found, {"w": expected})


def test_gradients_by_some_of_a_modules_parameters():
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    apply, params, buffers = tl.functional(net)

    def loss(params, x):
        return apply(params, buffers, x)[0].square().sum()

    everything = tl.grad(loss)(params, X)
    heads = tl.grad(loss, tl.names("2.*"))(params, X)
    torch.testing.assert_close(heads, {name: everything[name] for name in ("2.weight", "2.bias")})


@pytest.mark.sweep
@KINDS
def test_gradients_by_names_compile(kind):
    torch._dynamo.reset()
    transform, f = TRANSFORMS[kind]
    call = transform(f, tl.names("a.*"))
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(P, X), call(P, X))


# Errors


@KINDS
@pytest.mark.parametrize(
    ("argnums", "match"),
    [
        (tl.names("c*"), r"argument 0: 'c\*' matches no name. The names are: b, a.bias, a.weight."),
        (tl.names(["a*", "c*"]), r"'c\*' matches no name"),
        (tl.names([]), "no entry of argument 0 is chosen"),
        (tl.names(lambda name, value: False), "no entry of argument 0 is chosen"),
        (tl.names("*", argnum=1), "argument 1 by name, but it is a Tensor"),
        (tl.names("*", argnum=2), "names argument 2, but the call has 2 positional arguments"),
        (tl.names("*", argnum="x"), "must be made of ints"),
        ((0, tl.names("b")), "names an argument twice"),
        ((tl.names("a.*"), tl.names("b")), "names an argument twice"),
    ],
    ids=[
        "a pattern of no name",
        "one pattern of two",
        "no pattern",
        "a function that chooses nothing",
        "no dict",
        "no argument",
        "no place",
        "an argument twice",
        "two of one argument",
    ],
)
def test_names_that_choose_nothing_are_refused(kind, argnums, match):
    transform, f = TRANSFORMS[kind]
    with pytest.raises(ArgnumsError, match=f"torchlayers: .*{match}"):
        if transform is products:
            tl.hvp(f, (P, X), P, argnums=argnums)
        else:
            transform(f, argnums)(P, X)


def test_hvp_by_argnums():
    def f(x, y):
        return (x.square() * y).sum()

    product = tl.hvp(f, (X, V), X, argnums=0)
    torch.testing.assert_close(product, 2 * V * X)
    both = tl.hvp(f, (X, V), (X, V), argnums=(1, 0))
    torch.testing.assert_close(both, tl.hvp(f, (X, V), (V, X))[::-1])
    assert type(tl.hvp(f, (X, V), (X,), argnums=(0,))) is tuple
    with pytest.raises(ArgnumsError, match="hvp: argnums=2 names argument 2"):
        tl.hvp(f, (X, V), X, argnums=2)
    with pytest.raises(StructureError, match="structure"):
        tl.hvp(f, (X, V), (X,), argnums=0)
