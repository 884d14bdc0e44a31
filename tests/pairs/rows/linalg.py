"""Rows of the table of pairs: linear algebra, beside closed forms for two rows and columns."""

import torch

from tests.pairs.rows.table import row


def _symmetric(x):
    return torch.stack([x[0] + 3, x[1] * x[2], x[1] * x[2], x[3]]).reshape(2, 2)


def _closed_eigenvalues(x):
    (a, b), (_, d) = _symmetric(x)
    middle, distance = (a + d) / 2, (((a - d) / 2).square() + b * b).sqrt()
    return torch.stack([middle - distance, middle + distance])


@row("eigenvalues", lambda x: _closed_eigenvalues(x).repeat(2))
def _(x):
    return torch.linalg.eigvalsh(_symmetric(x)).repeat(2)


@row("singular values", lambda x: _closed_eigenvalues(x).flip(0).repeat(2))
def _(x):
    return torch.linalg.svdvals(_symmetric(x)).repeat(2)


def _closed_cholesky(x):
    (a, b), (_, d) = _symmetric(x)
    first = a.sqrt()
    return torch.stack([first, torch.zeros_like(a), b / first, (d - b * b / a).sqrt()])


@row("Cholesky", _closed_cholesky)
def _(x):
    return torch.linalg.cholesky(_symmetric(x)).reshape(4)


def _closed_solution(x):
    (a, b), (_, d) = _symmetric(x)
    return (torch.stack([d * x[0] - b * x[1], a * x[1] - b * x[0]]) / (a * d - b * b)).repeat(2)


@row("linear systems", _closed_solution)
def _(x):
    return torch.linalg.solve(_symmetric(x), x[:2]).repeat(2)


@row("determinants", lambda x: ((x[0] + 3) * x[3] - (x[1] * x[2]).square()).log() * x)
def _(x):
    return torch.linalg.slogdet(_symmetric(x))[1] * x


def _closed_inverse(x):
    (a, b), (_, d) = _symmetric(x)
    return torch.stack([d, -b, -b, a]) / (a * d - b * b)


@row("inverses", _closed_inverse)
def _(x):
    return torch.linalg.inv(_symmetric(x)).reshape(4)


@row("pseudoinverses", _closed_inverse)
def _(x):
    return torch.linalg.pinv(_symmetric(x)).reshape(4)


@row("least squares", _closed_solution)
def _(x):
    return torch.linalg.lstsq(_symmetric(x), x[:2, None])[0][:, 0].repeat(2)


def _closed_root(x):
    matrix = _symmetric(x)
    (a, b), (_, d) = matrix
    root = (a * d - b * b).sqrt()
    return (
        (matrix + root * torch.eye(2, dtype=torch.float64)) / (a + d + 2 * root).sqrt()
    ).reshape(4)


@row("eigenvectors", _closed_root)
def _(x):
    values, vectors = torch.linalg.eigh(_symmetric(x))
    return ((vectors * values.sqrt()) @ vectors.T).reshape(4)


@row("singular vectors", _closed_root)
def _(x):
    left, values, right = torch.linalg.svd(_symmetric(x))
    return ((left * values.sqrt()) @ right).reshape(4)


def _of_no_symmetry(x):
    return torch.stack([x[0] + 3, x[1], -x[2], x[3]]).reshape(2, 2)


@row("complex eigenvalues", lambda x: (_of_no_symmetry(x) @ _of_no_symmetry(x)).trace() * x)
def _(x):
    return torch.linalg.eigvals(_of_no_symmetry(x)).square().sum().real * x


def _closed_triangle(x):
    (a, b), (c, d) = _of_no_symmetry(x)
    first = a * a + c * c
    return torch.stack(
        [first, (a * b + c * d).square() / first, (a * d - b * c).square() / first, a]
    )


@row("QR", _closed_triangle)
def _(x):
    (a, b), (_, d) = torch.linalg.qr(_of_no_symmetry(x))[1].square()
    return torch.stack([a, b, d, x[0] + 3])


def _closed_factors(x):
    (a, b), (c, d) = _of_no_symmetry(x)
    return torch.stack([a, b, c / a, d - b * c / a])


@row("LU", _closed_factors)
def _(x):
    return torch.linalg.lu_factor(_of_no_symmetry(x))[0].reshape(4)


def _closed_exponential(x):
    matrix = _symmetric(x) / 2
    (a, b), (_, d) = matrix
    middle, distance = (a + d) / 2, (((a - d) / 2).square() + b * b).sqrt()
    eye = torch.eye(2, dtype=torch.float64)
    both = distance.cosh() * eye + distance.sinh() / distance * (matrix - middle * eye)
    return (middle.exp() * both).reshape(4)


@row("matrix exponentials", _closed_exponential)
def _(x):
    return torch.linalg.matrix_exp(_symmetric(x) / 2).reshape(4)


def _closed_substitution(x):
    last = x[2] / x[3]
    return torch.stack([x[1] * (1 - last) / (x[0] + 3), last, x[0], x[1]])


@row("triangular systems", _closed_substitution)
def _(x):
    upper = torch.stack([x[0] + 3, x[1], torch.zeros_like(x[0]), x[3]]).reshape(2, 2)
    solution = torch.linalg.solve_triangular(upper, x[1:3, None], upper=True)[:, 0]
    return torch.cat([solution, x[:2]])
