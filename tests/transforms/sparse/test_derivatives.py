"""jacfwd, jacrev and hessian with sparse=: the dense answer, as sparse matrices."""

import itertools
import pickle

import pytest
import scipy.sparse
import torch

import torchlayers as tl
from tests.transforms.sparse.patterns import PATTERNS, arrow
from torchlayers import SparsityPattern, coloring
from torchlayers.errors import (
    ArgnumsError,
    DtypeError,
    NotScalarError,
    NotTensorError,
    StructureError,
    TransformError,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse ... tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]
LAYOUTS = {
    "coo": torch.sparse_coo,
    "csr": torch.sparse_csr,
    "values": torch.strided,
    "dense": torch.strided,
}
JACOBIANS = {"jacfwd": tl.jacfwd, "jacrev": tl.jacrev}


def numbers(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def product(mask):
    """A nonlinear function whose Jacobian has this pattern."""
    weights = numbers(*mask.shape) * mask

    def f(x):
        return (weights * x.sin()).sum(1) * 2 + weights @ x**3

    return f


def energy(mask):
    """A function whose Hessian has this symmetric pattern."""
    weights = numbers(*mask.shape) * mask

    def f(x):
        return (weights * (x[:, None] * x).sin()).sum() + (x**4).sum()

    return f


def chain(x):
    return x[1:].sin() * x[:-1] ** 2


def links(x):
    return (x[1:] * x[:-1]).sin().sum() + (x**4).sum()


def dense(matrix):
    return matrix.to_dense() if matrix.layout != torch.strided else matrix


def assert_close(actual, expected):
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    assert torch.allclose(dense(actual), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("jacobian", JACOBIANS)
def test_a_given_pattern_gives_the_dense_jacobian(jacobian, name):
    mask = PATTERNS[name]()
    f, x = product(mask), numbers(mask.shape[1])
    assert_close(JACOBIANS[jacobian](f, sparse=mask)(x), tl.jacrev(f)(x))


@pytest.mark.parametrize("mode", ["columns", "rows", "bidirectional"])
@pytest.mark.parametrize("jacobian", JACOBIANS)
@pytest.mark.parametrize("name", ["arrow", "random wide", "random tall", "empty"])
def test_a_given_coloring_decides_the_direction(name, jacobian, mode):
    mask = PATTERNS[name]()
    f, x = product(mask), numbers(mask.shape[1])
    sparse = JACOBIANS[jacobian](f, sparse=coloring(mask, mode), check=True)
    assert_close(sparse(x), tl.jacrev(f)(x))


@pytest.mark.parametrize("mode", ["star", "acyclic", "columns"])
@pytest.mark.parametrize("name", ["tridiagonal", "arrow", "random symmetric", "attached"])
def test_hessians_by_every_coloring(name, mode):
    mask = PATTERNS[name]()
    f, x = energy(mask), numbers(mask.shape[0])
    expected = tl.hessian(f)(x)
    assert_close(tl.hessian(f, sparse=coloring(mask, mode), check=True)(x), expected)
    for jacobian in JACOBIANS.values():  # of a gradient: a symmetric Jacobian
        assert_close(jacobian(tl.grad(f), sparse=coloring(mask, mode), check=True)(x), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("jacobian", JACOBIANS)
def test_layouts(jacobian, layout):
    x = numbers(6)
    expected = tl.jacrev(chain)(x)
    found = JACOBIANS[jacobian](chain, sparse=True, layout=layout)(x)
    assert found.layout == LAYOUTS[layout]
    if layout == "values":
        pattern = tl.sparsity(chain, x)
        found = pattern.to_sparse(found)
    elif layout == "coo":
        assert found.is_coalesced()
    assert_close(found, expected)


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 100, "auto"])
def test_chunks_of_colors(chunk_size):
    mask = PATTERNS["random square"]()
    f, x = product(mask), numbers(mask.shape[1])
    expected = tl.jacrev(f)(x)
    for jacobian in JACOBIANS.values():
        assert_close(jacobian(f, sparse=mask, chunk_size=chunk_size)(x), expected)
    assert_close(tl.hessian(links, sparse=True, chunk_size=chunk_size)(x), tl.hessian(links)(x))


@pytest.mark.parametrize("jacobian", JACOBIANS)
def test_one_product_for_each_color(jacobian):
    """Samples under the vmap in which the products run."""
    sizes = []

    def f(x):
        sizes.append(tl.current_stack()[0].metadata.get("batch_size"))
        return chain(x)

    mask = tl.sparsity(chain, numbers(50))
    if jacobian == "jacfwd":
        tl.jacfwd(f, sparse=mask)(numbers(50))
        assert sizes == [2]
        return
    pulled = []

    class Watched(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            pulled.append(tl.current_stack()[0].metadata.get("batch_size"))
            return g

    tl.jacrev(lambda x: chain(Watched.apply(x)), sparse=mask)(numbers(50))
    assert pulled == [2]


def test_patterns_in_every_form():
    x = numbers(6)
    expected = tl.jacrev(chain)(x)
    mask = expected != 0
    forms = [
        mask,
        mask.numpy(),
        mask.tolist(),
        expected.to_sparse(),
        expected.to_sparse_csr(),
        scipy.sparse.csr_matrix(expected.numpy()),
        SparsityPattern.from_dense(mask),
        coloring(mask),
        pickle.loads(pickle.dumps(coloring(mask))),
    ]
    for form in forms:
        assert_close(tl.jacfwd(chain, sparse=form)(x), expected)


def test_without_sparse_the_answer_is_dense():
    x = numbers(4)
    for sparse in (None, False):
        for transform in (tl.jacfwd, tl.jacrev):
            assert transform(chain, sparse=sparse)(x).layout == torch.strided
        assert tl.hessian(links, sparse=sparse)(x).layout == torch.strided


def of_trees(tree, scale):
    a, b = tree["a"], tree["b"]
    return {"sum": a.sum() * scale, "parts": [a.sin() * b[0, 0], (b**2).flatten()[1:]]}


@pytest.mark.parametrize("jacobian", JACOBIANS)
@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1, 0), -1])
def test_pytrees_give_a_block_for_each_output_and_input(argnums, jacobian):
    args = {"a": numbers(3), "b": numbers(2, 2, seed=1)}, numbers(seed=2)
    found = JACOBIANS[jacobian](of_trees, argnums, sparse=True)(*args)
    expected = JACOBIANS[jacobian](of_trees, argnums)(*args)
    assert tl.tree.flatten(found)[1] == tl.tree.flatten(expected)[1]
    outputs = tl.tree.leaves(of_trees(*args))
    chosen = argnums if isinstance(argnums, tuple) else (argnums,)
    inputs = tl.tree.leaves([args[i] for i in chosen])
    blocks = zip(
        tl.tree.leaves(found),
        tl.tree.leaves(expected),
        itertools.product(outputs, inputs),
        strict=True,
    )
    for block, whole, (output, x) in blocks:
        assert_close(block, whole.reshape(output.numel(), x.numel()))


def test_hessians_of_pytrees():
    def f(tree, y):
        return (tree["a"] ** 2).sum() * tree["b"].sum() + (y**3).sum()

    args = {"a": numbers(3), "b": numbers(2, seed=1)}, numbers(2, 2, seed=2)
    for argnums in (0, (0, 1)):
        found = tl.hessian(f, argnums, sparse=True, check=True)(*args)
        expected = tl.hessian(f, argnums)(*args)
        assert tl.tree.flatten(found)[1] == tl.tree.flatten(expected)[1]
        for block, whole in zip(tl.tree.leaves(found), tl.tree.leaves(expected), strict=True):
            assert_close(block.to_dense(), whole.reshape(block.shape))


def test_entries_of_a_dict_by_name():
    def f(params, x):
        return (params["w"] * x).sin() + params["b"]

    params, x = {"w": numbers(3), "b": numbers(3, seed=1)}, numbers(3, seed=2)
    for transform in JACOBIANS.values():
        found = transform(f, tl.names("w"), sparse=True)(params, x)
        assert list(found) == ["w"]
        assert_close(found["w"], tl.jacrev(f, tl.names("w"))(params, x)["w"])


def test_several_dimensions_are_flattened():
    def f(x):
        return (x**2).diff(dim=0)

    x = numbers(3, 2)
    found = tl.jacfwd(f, sparse=True)(x)
    assert found.shape == (4, 6)
    assert_close(found, tl.jacfwd(f)(x).reshape(4, 6))
    assert_close(tl.jacrev(torch.sum, sparse=True)(x), torch.ones(1, 6, dtype=torch.float64))
    assert tl.hessian(lambda x: (x**3).sum(), sparse=True)(numbers()).shape == (1, 1)


@pytest.mark.parametrize("jacobian", JACOBIANS)
def test_aux_is_passed_through(jacobian):
    def f(x):
        return chain(x), {"size": x.shape[0], "sum": x.sum()}

    x = numbers(5)
    found, aux = JACOBIANS[jacobian](f, has_aux=True, sparse=True)(x)
    assert_close(found, tl.jacrev(chain)(x))
    assert aux["size"] == 5 and torch.equal(aux["sum"], x.sum())


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_single_precision_and_mixed_dtypes(layout):
    def f(x, y):
        return x.double() * y[:1], x * 2

    x, y = numbers(3, dtype=torch.float32), numbers(3, seed=1)
    for jacobian in JACOBIANS.values():
        found = jacobian(f, (0, 1), sparse=True, layout=layout)(x, y)
        expected = tl.jacfwd(f, (0, 1))(x, y)
        for block, whole in zip(tl.tree.leaves(found), tl.tree.leaves(expected), strict=True):
            assert block.dtype == whole.dtype
            assert torch.allclose(dense(block), whole)
    assert tl.hessian(links, sparse=True)(x).dtype == torch.float32


def test_zero_columns_and_constants():
    def f(x):
        return torch.stack([x[0] * x[0], torch.ones((), dtype=x.dtype)])

    x = numbers(3)
    for jacobian in JACOBIANS.values():
        found = jacobian(f, sparse=True)(x)
        assert_close(found, tl.jacrev(f)(x))
        assert found._nnz() == 1
    assert tl.hessian(torch.sum, sparse=True)(x)._nnz() == 0


def count_detections(monkeypatch):
    """A list that gets an item for each detection of a pattern."""
    found = []
    kept = tl.transforms.sparse.kept_colorings.KeptColorings
    true = kept.__init__

    def init(self, api, sparse, detect, *rest):
        def counted(*args, **kwargs):
            found.append(api)
            return detect(*args, **kwargs)

        true(self, api, sparse, counted, *rest)

    monkeypatch.setattr(kept, "__init__", init)
    return found


def test_the_pattern_is_detected_once_for_arguments_of_a_kind(monkeypatch):
    detections = count_detections(monkeypatch)
    transform = tl.jacfwd(lambda x, p: chain(x) * p, sparse=True)
    p = numbers(seed=1)
    for size, count in [(5, 1), (5, 1), (6, 2), (5, 2), (6, 2)]:
        transform(numbers(size, seed=size + count), p)
        assert len(detections) == count
    transform(numbers(5, dtype=torch.float32), p.float())
    assert len(detections) == 3


def test_the_pattern_is_detected_anew_for_other_values_of_other_arguments(monkeypatch):
    detections = count_detections(monkeypatch)

    def f(x, places, exponent):
        return x[places] ** exponent

    transform = tl.jacrev(f, sparse=True)
    x = numbers(5)
    for places in ([0, 1], [3, 4], [3, 4]):
        index = torch.tensor(places)
        assert_close(transform(x, index, 2), tl.jacrev(f)(x, index, 2))
    assert len(detections) == 2
    transform(x, torch.tensor([3, 4]), 3)
    assert len(detections) == 3


@pytest.mark.parametrize("transform", ["jacfwd", "jacrev", "hessian"])
@pytest.mark.parametrize("sparse", ["detected", "given"])
def test_under_vmap(transform, sparse):
    f = links if transform == "hessian" else chain
    derivative = getattr(tl, transform)
    xs = numbers(3, 6)
    mask = True if sparse == "detected" else dense(derivative(f)(xs[0])) != 0
    expected = tl.vmap(derivative(f))(xs)
    assert_close(tl.vmap(derivative(f, sparse=mask))(xs), expected)
    nested = tl.vmap(tl.vmap(derivative(f, sparse=mask)))(xs[None])
    assert_close(nested, expected[None])
    values = tl.vmap(derivative(f, sparse=mask, layout="values"))(xs)
    pattern = tl.sparsity(f, xs[0], of="hessian" if f is links else "jacobian")
    assert_close(values, expected[:, pattern.rows, pattern.cols])


VARYING = {
    "gather": lambda x: x.gather(0, x.argsort()) * x,
    "index_select": lambda x: x.index_select(0, x.argsort()) * x,
    "number": lambda x: x[x.argmax()] * x,
    "written": lambda x: x.clone().index_put_((x.argmin(),), x[0]) * x,
}


@pytest.mark.parametrize("transform", [tl.jacfwd, tl.jacrev])
@pytest.mark.parametrize("f", VARYING.values(), ids=VARYING)
def test_places_that_depend_on_the_input_under_vmap(f, transform):
    xs = numbers(3, 4)
    assert_close(tl.vmap(transform(f, sparse=True))(xs), tl.vmap(tl.jacfwd(f))(xs))


def test_a_csr_matrix_can_not_be_batched():
    with pytest.raises(TransformError, match=r"CSR matrix can't be batched under vmap.*'values'"):
        tl.vmap(tl.jacfwd(chain, sparse=True, layout="csr"))(numbers(2, 5))
    assert tl.current_stack() == ()


@pytest.mark.parametrize("transform", ["jacfwd", "jacrev", "hessian"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_differentiated_again(transform, layout):
    f = links if transform == "hessian" else chain
    derivative = getattr(tl, transform)
    x = numbers(5)

    def loss(x, **options):
        return (dense(derivative(f, **options)(x)) ** 3).sum()

    expected = tl.grad(loss)(x)
    options = {"sparse": True, "layout": layout}
    assert_close(tl.grad(lambda x: loss(x, **options))(x), expected)
    tangent = numbers(5, seed=1)
    _, pushed = tl.jvp(lambda x: loss(x, **options), (x,), (tangent,))
    assert_close(pushed, expected @ tangent)
    leaf = x.clone().requires_grad_()
    loss(leaf, **options).backward()
    assert_close(leaf.grad, expected)
    (twice,) = tl.hvp(lambda x: loss(x, **options), (x,), (tangent,))
    assert_close(twice, tl.hvp(loss, (x,), (tangent,))[0])
    assert_close(tl.hessian(lambda x: loss(x, **options))(x), tl.hessian(loss)(x))


def test_products_with_the_matrix_are_differentiated():
    x, v = numbers(5), numbers(5, seed=1)
    expected = tl.grad(lambda x: ((tl.jacfwd(chain)(x) @ v) ** 2).sum())(x)
    found = tl.grad(lambda x: ((tl.jacfwd(chain, sparse=True)(x) @ v) ** 2).sum())(x)
    assert_close(found, expected)


@pytest.mark.sweep
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transform", ["jacfwd", "jacrev", "hessian"])
def test_compiled(transform, layout):
    f = links if transform == "hessian" else chain
    derivative = getattr(tl, transform)
    sparse = derivative(f, sparse=True, layout=layout)
    compiled = tl.compile(sparse)
    for seed in range(2):
        x = numbers(5, seed=seed)
        assert_close(dense(compiled(x)), dense(sparse(x)))


@pytest.mark.parametrize("transform", ["jacfwd", "jacrev"])
@pytest.mark.parametrize("missing", [(0, 0), (2, 3), (3, 4)])
def test_check_names_a_missing_entry(transform, missing):
    x = numbers(5)
    mask = tl.jacrev(chain)(x) != 0
    assert mask[missing]
    mask[missing] = False
    with pytest.raises(StructureError, match=rf"lacks entry \({missing[0]}, {missing[1]}\)"):
        getattr(tl, transform)(chain, sparse=mask, check=True)(x)


@pytest.mark.parametrize("mode", ["star", "acyclic", "columns"])
def test_check_names_a_missing_entry_of_a_hessian(mode):
    x = numbers(6)
    mask = tl.hessian(links)(x) != 0
    mask[2, 3] = mask[3, 2] = False
    with pytest.raises(StructureError, match=r"lacks entry \((2, 3|3, 2)\)"):
        tl.hessian(links, sparse=coloring(mask, mode), check=True)(x)


@pytest.mark.parametrize("mode", ["rows", "bidirectional"])
def test_check_names_a_missing_entry_by_other_colorings(mode):
    mask = arrow(8, 1)
    f, x = product(mask), numbers(8)
    mask = mask.clone()
    mask[5, 0] = False
    with pytest.raises(StructureError, match=r"lacks entry \(5, 0\)"):
        tl.jacfwd(f, sparse=coloring(mask, mode), check=True)(x)


def test_check_notices_a_matrix_that_is_not_symmetric():
    with pytest.raises(StructureError, match="not symmetric"):
        f = product(PATTERNS["tridiagonal"]())
        mask = coloring(PATTERNS["tridiagonal"](), "star")
        tl.jacfwd(f, sparse=mask, check=True)(numbers(30))


@pytest.mark.parametrize("transform", ["jacfwd", "jacrev", "hessian"])
@pytest.mark.parametrize("sparse", [None, False])
def test_check_of_a_dense_derivative_is_refused(transform, sparse):
    with pytest.raises(TransformError, match=rf"^torchlayers: {transform}: check=True .* sparse="):
        getattr(tl, transform)(links, sparse=sparse, check=True)
    getattr(tl, transform)(links, sparse=sparse, check=False)(numbers(5))


def test_check_leaves_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    tl.jacfwd(chain, sparse=True, check=True)(numbers(5))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: tl.jacfwd(chain, sparse=torch.ones(3, 5))(numbers(5)),
            StructureError,
            r"pattern has shape \(3, 5\), but the Jacobian has 4 rows",
        ),
        (
            lambda: tl.jacfwd(chain, sparse=torch.ones(4, 6))(numbers(5)),
            StructureError,
            "pattern has 6 columns .* but there are 5",
        ),
        (
            lambda: tl.jacrev(chain, sparse=torch.ones(3, 5))(numbers(5)),
            StructureError,
            "pattern has 3 rows .* but there are 4",
        ),
        (
            lambda: tl.hessian(links, sparse=coloring(torch.ones(5, 5), "rows"))(numbers(5)),
            StructureError,
            "mode 'rows', but hessian takes the modes 'star', 'acyclic', 'columns'",
        ),
        (
            lambda: tl.jacfwd(chain, sparse=True, layout="bsr"),
            ValueError,
            "layout must be 'coo', 'csr', 'values' or 'dense', got 'bsr'",
        ),
        (
            lambda: tl.jacfwd(chain, sparse=True, check="always"),
            ValueError,
            "check must be True or False, got 'always'",
        ),
        (lambda: tl.jacrev(chain, sparse=torch.ones(3)), StructureError, "two dimensions"),
        (
            lambda: tl.jacfwd(chain, sparse=True)(numbers(5, dtype=torch.complex64)),
            DtypeError,
            "real",
        ),
        (
            lambda: tl.jacfwd(lambda x: torch.complex(x, x), sparse=torch.ones(5, 5))(numbers(5)),
            DtypeError,
            "outputs to be real",
        ),
        (lambda: tl.jacfwd(chain, sparse=torch.ones(4, 5))(2.0), NotTensorError, "float"),
        (lambda: tl.jacrev(chain, 1, sparse=True)(numbers(5)), ArgnumsError, "argnums=1"),
        (lambda: tl.hessian(chain, sparse=True)(numbers(5)), NotScalarError, "scalar"),
        (
            lambda: tl.hessian(chain, sparse=torch.ones(5, 5))(numbers(5)),
            NotScalarError,
            "hessian: chain must return a scalar",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
    assert tl.current_stack() == ()
