"""extend.statement: what is said once of an operator holds in every transform."""

import pytest
import torch

import torchlayers as tl
from torchlayers.transforms.layers.rule_table import facts

LIBRARY = "statements"
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@torch.library.custom_op(f"{LIBRARY}::softsign", mutates_args=())
def softsign(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + x.abs())


@torch.library.custom_op(f"{LIBRARY}::power", mutates_args=())
def power(x: torch.Tensor, y: torch.Tensor, shift: float = 1.0) -> torch.Tensor:
    return (x + shift) ** y


@torch.library.custom_op(f"{LIBRARY}::expm", mutates_args=())
def scaled_exp(x: torch.Tensor) -> torch.Tensor:
    return 3 * x.exp()


@torch.library.custom_op(f"{LIBRARY}::half_product", mutates_args=())
def half_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return 0.5 * a @ b


@torch.library.custom_op(f"{LIBRARY}::signs", mutates_args=())
def signs(x: torch.Tensor) -> torch.Tensor:
    return x.sign()


@torch.library.custom_op(f"{LIBRARY}::reversed_rows", mutates_args=())
def reversed_rows(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1)


for op in (softsign, scaled_exp, signs, reversed_rows):
    op.register_fake(torch.empty_like)
power.register_fake(lambda x, y, shift=1.0: torch.empty_like(x + y))
half_product.register_fake(lambda a, b: a.new_empty(a.shape[0], b.shape[1]))

tl.extend.statement(softsign, terms={"x": lambda t, x: t / (1 + x.abs()) ** 2})
tl.extend.statement(
    power,
    terms={
        "x": lambda t, x, exponent, shift: t * exponent * (x + shift) ** (exponent - 1),
        "y": lambda t, x, exponent, shift: t * (x + shift) ** exponent * (x + shift).log(),
    },
)
tl.extend.statement(scaled_exp, terms={"x": lambda t, x, y: t * y})
tl.extend.statement(
    half_product,
    linear_in=("a", "b"),
    transposes={
        "a": lambda g, a, b: half_product(g, b.mT.contiguous()),
        "b": lambda g, a, b: half_product(a.mT.contiguous(), g),
    },
    contracts=("a", "b", "ik,kj->ij"),
)
tl.extend.statement(signs, step=True)
tl.extend.statement(
    reversed_rows, linear_in=["x"], transposes={"x": lambda g, x: reversed_rows(g)}, gathers=True
)

X = torch.tensor([[0.5, 1.5, 2.0], [0.1, 3.0, 0.7]], dtype=torch.float64)
Y = torch.tensor([2.0, 3.0, 1.5], dtype=torch.float64)
B = torch.tensor([[1.0, 0.0], [2.0, 3.0], [0.0, 0.5]], dtype=torch.float64)
# The stated operators, and the same in operators of torch.
FUNCTIONS = {
    "elementwise": (softsign, torch.nn.functional.softsign),
    "by its result": (scaled_exp, lambda x: 3 * x.exp()),
    "of two, broadcast": (lambda x: power(x, Y) * x, lambda x: (x + 1) ** Y * x),
    "of the other": (lambda x: power(x, x), lambda x: (x + 1) ** x),
    "linear": (lambda x: half_product(x, B), lambda x: 0.5 * x @ B),
    "bilinear": (
        lambda x: half_product(x, (x * x).mT.contiguous()),
        lambda x: 0.5 * x @ (x * x).mT,
    ),
    "moved": (lambda x: reversed_rows(x) * x, lambda x: x.flip(-1) * x),
    "a step": (lambda x: signs(x) * x.sin(), lambda x: x.sign() * x.sin()),
}
TRANSFORMS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sin().sum()),
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),)),
    "vmap": lambda f: tl.vmap(tl.grad(lambda x: f(x[None]).sin().sum())),
    "vmap behind": lambda f: lambda x: tl.vmap(f, in_dims=2)(torch.stack([x, x + 1], 2)),
    "hessian": lambda f: tl.hessian(lambda x: f(x).sin().sum()),
    "jet": lambda f: lambda x: tl.jet(f, (x,), ((x.cos(), x.sin(), x),)),
    "laplacian": lambda f: tl.laplacian(lambda x: f(x).sin().sum()),
}
functions = pytest.mark.parametrize("name", FUNCTIONS)


@functions
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_follow_from_the_statement(name, transform):
    stated, plain = (TRANSFORMS[transform](f)(X) for f in FUNCTIONS[name])
    torch.testing.assert_close(stated, plain)


@functions
@pytest.mark.parametrize("local", [False, True])
def test_patterns_are_exact(name, local):
    stated, plain = (tl.sparsity(f, X, local=local) for f in FUNCTIONS[name])
    assert torch.equal(stated.to_dense(), plain.to_dense())
    assert not stated.unknown


def test_compiled():
    f = tl.compile(tl.grad(lambda x: (softsign(x) * half_product(x, B).sum()).sum()))
    plain = tl.grad(lambda x: (torch.nn.functional.softsign(x) * (0.5 * x @ B).sum()).sum())
    torch.testing.assert_close(f(X), plain(X))


def test_tags_of_a_layer_know_the_operator():
    class Watching(tl.Layer):
        """Counts elementwise operators."""

    seen = []

    @Watching.rule("elementwise")
    def note(layer, op, *args, **kwargs):
        seen.append(op)
        return layer.tensor(layer.send_down(op, args, kwargs))

    with Watching() as layer:
        layer.apply(softsign, layer.tensor(X))
    assert seen == [softsign._opoverload]


def test_a_statement_is_read_by_layers_that_looked_before():
    @torch.library.custom_op(f"{LIBRARY}::late", mutates_args=())
    def late(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    assert tl.sparsity(late, X[0]).unknown
    tl.extend.statement(late, terms={"x": lambda t, x: t * x.cos()})
    assert tl.sparsity(late, X[0]).nnz == 3


def test_gradients_of_complex_numbers_are_conjugated():
    z = torch.tensor([1 + 2j, 0.5 - 1j])
    found, expected = (
        tl.grad(lambda z, f=f: f(z).abs().sum())(z) for f in FUNCTIONS["by its result"]
    )
    torch.testing.assert_close(found, expected)


MISTAKES = {
    "no such argument": (dict(terms={"z": lambda t, x: t}), "no positional tensor argument 'z'"),
    "two kinds": (dict(terms={"x": lambda t, x: t}, step=True), "only one of"),
    "another word": (dict(along="sideways"), "along is one of"),
    "stated before": (dict(terms={"x": lambda t, x: t}), "already has a rule"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused(mistake):
    words, message = MISTAKES[mistake]
    before = facts(softsign._opoverload)
    with pytest.raises(tl.errors.RuleError, match=message):
        tl.extend.statement(softsign, **words)
    assert facts(softsign._opoverload) is before
