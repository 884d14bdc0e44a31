"""Derivatives at singular matrices, equal eigenvalues and defective matrices.

A determinant is a polynomial of the elements, which expand() computes, and has derivatives of every
order at every matrix. Functions without a derivative give nan or an error, not a finite number made
of rounding errors.
"""

import pytest
import torch

import torchlayers as tl

NESTS = {
    "jacrev": tl.jacrev,
    "jacfwd": tl.jacfwd,
    "jacrev of jacrev": lambda f: tl.jacrev(tl.jacrev(f)),
    "jacrev of jacfwd": lambda f: tl.jacrev(tl.jacfwd(f)),
    "hessian": tl.hessian,
    "jacfwd of jacfwd": lambda f: tl.jacfwd(tl.jacfwd(f)),
    "jacfwd of hessian": lambda f: tl.jacfwd(tl.hessian(f)),
    "hessian of jacfwd": lambda f: tl.hessian(tl.jacfwd(f)),
}
FIRST = {name: NESTS[name] for name in ("jacrev", "jacfwd")}
UP_TO_SECOND = {name: nest for name, nest in NESTS.items() if name.count("hessian of") == 0}
del UP_TO_SECOND["jacfwd of hessian"]

nests = pytest.mark.parametrize("nest", NESTS)
in_first_and_second_order = pytest.mark.parametrize("nest", UP_TO_SECOND)
in_first_order = pytest.mark.parametrize("nest", FIRST)


def expand(a):
    """The determinant by recursive expansion along the first row."""
    size = a.shape[-1]
    if size == 0:
        return a.new_ones(a.shape[:-2])
    minors = [torch.cat([a[..., 1:, :j], a[..., 1:, j + 1 :]], -1) for j in range(size)]
    return sum((-1) ** j * a[..., 0, j] * expand(minor) for j, minor in enumerate(minors))


def numbers(*sizes, dtype=torch.float64, seed=0):
    return torch.randn(*sizes, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def of_rank(rank, size, dtype=torch.float64, seed=0):
    left = numbers(size, rank, dtype=dtype, seed=seed)
    return left @ numbers(rank, size, dtype=dtype, seed=seed + 1)


MATRICES = {
    "none": torch.zeros(0, 0, dtype=torch.float64),
    "a zero": torch.zeros(1, 1, dtype=torch.float64),
    "one to nine": torch.arange(1.0, 10).view(3, 3).double(),
    "a zero on the diagonal": torch.tensor([1.0, 2, 0, 3]).double().diag(),
    "a shift": torch.ones(3).double().diag(1),
    "a graph's Laplacian": 4 * torch.eye(4).double() - 1,
    "zeros": torch.zeros(4, 4).double(),
    "nearly of rank 3 of 4": of_rank(3, 4) + 1e-9 * numbers(4, 4, seed=5),
    **{f"rank {rank} of {n}": of_rank(rank, n) for n in (2, 3, 4) for rank in range(n + 1)},
}


@pytest.mark.sweep
@nests
@pytest.mark.parametrize("name", MATRICES)
def test_a_determinants_derivatives_are_those_of_its_expansion(name, nest):
    a = MATRICES[name]
    expected = NESTS[nest](expand)(a) if a.numel() else a.new_zeros(a.shape * nest.count("jac"))
    found = NESTS[nest](torch.linalg.det)(a)
    if not a.numel():
        assert found.numel() == 0
        return
    # For a matrix with a rank deficiency of four, the third derivative is as precise as a root of
    # the rounding error.
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=3e-8)


@pytest.mark.sweep
@in_first_and_second_order
@pytest.mark.parametrize("rank", [1, 3, 4, 5])
def test_determinant_derivatives_of_five_rows(rank, nest):
    a = of_rank(rank, 5)
    expected = NESTS[nest](expand)(a)
    torch.testing.assert_close(NESTS[nest](torch.linalg.det)(a), expected, rtol=1e-7, atol=1e-7)


@in_first_and_second_order
def test_in_single_precision(nest):
    a = of_rank(3, 4, dtype=torch.float32)
    expected = NESTS[nest](expand)(a.double()).float()
    found = NESTS[nest](torch.linalg.det)(a)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@in_first_and_second_order
@pytest.mark.parametrize("part", ["real", "imag"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_determinant_derivatives_of_complex_matrices(size, part, nest):
    a = of_rank(size - 1, size, dtype=torch.complex128)

    def of_parts(determinant):
        return lambda parts: getattr(determinant(torch.complex(parts[0], parts[1])), part)

    parts = torch.stack([a.real, a.imag])
    expected = NESTS[nest](of_parts(expand))(parts)
    found = NESTS[nest](of_parts(torch.linalg.det))(parts)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


@in_first_and_second_order
@pytest.mark.parametrize("size", [2, 3, 4])
def test_determinant_derivatives_of_a_batch_with_singular_matrices(size, nest):
    batch = torch.stack([numbers(size, size), of_rank(size - 1, size), torch.zeros(size, size)])
    expected = torch.stack([NESTS[nest](expand)(a) for a in batch])
    found = tl.vmap(NESTS[nest](torch.linalg.det))(batch)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)
    weights = numbers(3)
    found = tl.grad(lambda batch: (torch.linalg.det(batch) * weights).sum())(batch)
    first = torch.stack([tl.grad(expand)(a) for a in batch])
    torch.testing.assert_close(found, first * weights.view(3, 1, 1), rtol=1e-7, atol=1e-8)


@pytest.mark.sweep
@pytest.mark.parametrize("derivative", [tl.grad, tl.jacfwd, tl.hessian])
def test_a_compiled_derivative_of_regular_matrices_holds_for_singular_ones(derivative):
    compiled = tl.compile(derivative(torch.linalg.det), backend="replay")
    for a in (numbers(4, 4), of_rank(3, 4)):
        expected = derivative(expand)(a)
        torch.testing.assert_close(compiled(a), expected, rtol=1e-7, atol=1e-8)


def test_autograd_around_a_gradient_finds_the_second_derivative():
    a = of_rank(3, 4)
    recorded = a.clone().requires_grad_()
    (found,) = torch.autograd.grad(tl.grad(torch.linalg.det)(recorded).square().sum(), recorded)
    expected = tl.grad(lambda a: tl.grad(expand)(a).square().sum())(a)
    torch.testing.assert_close(found, expected)


@in_first_order
@pytest.mark.parametrize("f", [torch.logdet, lambda a: torch.linalg.slogdet(a)[1]])
def test_the_logarithm_of_a_determinant_of_zero_has_no_finite_derivative(f, nest):
    found = NESTS[nest](f)(torch.tensor([1.0, 2.0, 0.0]).diag())
    assert not found.diagonal().isfinite().any()


def central_differences(f, a, step=1e-6):
    columns = []
    for place in range(a.numel()):
        move = torch.zeros_like(a).view(-1)
        move[place] = step
        columns.append((f(a + move.view_as(a)) - f(a - move.view_as(a))) / (2 * step))
    return torch.stack(columns, -1).view(*columns[0].shape, *a.shape)


WEIGHTS = numbers(5, 5, seed=7)


def weighted(*matrices):
    return sum((m * WEIGHTS[: m.shape[-2], : m.shape[-1]]).sum() for m in matrices)


DEPENDENT = torch.tensor([[4.0, 1, 2], [1, 5, 3], [1.4, 1.3, 1.2]]).double()
WIDE = torch.tensor([[4.0, 1, 2, 5], [1, 5, 3, 2], [1.4, 1.3, 1.2, 3]]).double()  # U[2, 2] is zero
FACTORED = {
    "lu": lambda a: weighted(*torch.linalg.lu(a)[1:]),
    "lu_factor": lambda a: weighted(torch.linalg.lu_factor_ex(a)[0]),
    "qr": lambda a: weighted(*torch.linalg.qr(a)),
}


@in_first_and_second_order
@pytest.mark.parametrize("matrix", [DEPENDENT, WIDE], ids=["square", "wide"])
@pytest.mark.parametrize("name", FACTORED)
def test_factors_have_derivatives_where_the_last_pivot_is_zero(name, matrix, nest):
    f = FACTORED[name]
    inner = f if nest in FIRST else tl.jacrev(f)
    expected = central_differences(inner, matrix)
    torch.testing.assert_close(NESTS[nest](f)(matrix), expected, rtol=1e-5, atol=1e-5)


def reconstructed(a):
    values, vectors = torch.linalg.eigh((a + a.mT) / 2)
    return weighted(vectors @ values.exp().diag_embed() @ vectors.mT)


@in_first_order
def test_vectors_of_eigenvalues_that_rounding_keeps_apart_have_no_derivative(nest):
    turn = torch.linalg.qr(numbers(4, 4))[0]
    a = turn @ torch.tensor([1.0, 1.0, 1.0, 3.0]).double().diag() @ turn.mT
    assert NESTS[nest](reconstructed)(a).isnan().any()


def test_a_logarithm_near_one_has_a_gradient_although_rounding_keeps_eigenvalues_apart():
    """The vectors are scaled by logarithms of the size of the gap, so the quotient is precise."""
    a = torch.tensor([1 - 2**-53, 1 + 2**-52, 1.2], dtype=torch.float64).diag()

    def logarithm(a):
        values, vectors = torch.linalg.eigh((a + a.mT) / 2)
        return weighted(vectors @ values.log().diag_embed() @ vectors.mT)

    expected = central_differences(logarithm, a)
    torch.testing.assert_close(tl.grad(logarithm)(a), expected, rtol=1e-5, atol=1e-6)
    forward = tl.jacfwd(logarithm)(a)  # a tangent does not tell what is done with it
    assert torch.equal(forward.isnan(), a.new_tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]]).bool())
    torch.testing.assert_close(forward.where(~forward.isnan(), expected), expected)


@in_first_order
def test_eigenvectors_of_distinct_eigenvalues_have_a_derivative_despite_noise(nest):
    """The first principal component, when the rest is only rounding noise."""
    turn = torch.linalg.qr(numbers(3, 3))[0]
    a = turn @ torch.tensor([1e-17, 3e-17, 3.0]).double().diag() @ turn.mT

    def projector(a):
        vector = torch.linalg.eigh((a + a.mT) / 2)[1][:, -1]
        return weighted(torch.outer(vector, vector))

    expected = central_differences(projector, a)
    torch.testing.assert_close(NESTS[nest](projector)(a), expected, rtol=1e-5, atol=1e-6)


@in_first_order
@pytest.mark.parametrize("order", [1, 2, 3])
def test_powers_of_eigenvalues_that_are_equal_have_a_derivative(order, nest):
    a = 2 * torch.eye(3).double()
    found = NESTS[nest](lambda a: (torch.linalg.eigvalsh((a + a.mT) / 2) ** order).sum())(a)
    torch.testing.assert_close(found, order * torch.linalg.matrix_power(a, order - 1))


@in_first_and_second_order
def test_a_matrix_without_a_basis_of_eigenvectors_has_no_derivative_by_them(nest):
    a = torch.tensor([[2.0, 1.0], [0.0, 2.0]]).double()
    found = NESTS[nest](lambda a: (torch.linalg.eig(a)[0] ** 2).sum().real)(a)
    assert found.isnan().any()


@in_first_and_second_order
@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_powers_of_a_singular_matrix(power, nest):
    a = of_rank(2, 3)
    identity = torch.eye(3).double()

    def multiplied(a):
        result = identity + 0 * a
        for _ in range(power):
            result = result @ a
        return weighted(result)

    expected = NESTS[nest](multiplied)(a)
    found = NESTS[nest](lambda a: weighted(torch.linalg.matrix_power(a, power)))(a)
    torch.testing.assert_close(found, expected)


@in_first_order
def test_a_pseudo_inverse_has_the_derivative_along_matrices_of_its_rank(nest):
    right = numbers(2, 3, seed=3)

    def f(left):
        return weighted(torch.linalg.pinv(left @ right, rtol=1e-10))

    left = numbers(4, 2)
    expected = central_differences(f, left)
    torch.testing.assert_close(NESTS[nest](f)(left), expected, rtol=1e-5, atol=1e-5)
