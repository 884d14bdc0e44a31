"""Patterns that colourings and derivatives are tested on, as functions that return a mask."""

import torch


def banded(size, width):
    distance = torch.arange(size)[:, None] - torch.arange(size)
    return distance.abs() <= width


def arrow(size, dense):
    mask = torch.eye(size, dtype=torch.bool)
    mask[:dense], mask[:, :dense] = True, True
    return mask


def dense_rows_apart(size):
    """Two dense rows and columns that don't meet: no entries (0, 1) and (1, 0)."""
    mask = arrow(size, 2)
    mask[0, 1] = mask[1, 0] = False
    return mask


def blocks(size, block):
    return torch.block_diag(*[torch.ones(block, block)] * (size // block)).bool()


def kron(*factors):
    result = factors[0]
    for factor in factors[1:]:
        result = torch.kron(result, factor)
    return result


def grid(*sizes, corners=False):
    """The stencil of a point and its nearest neighbours; with corners, all around it."""
    lines = [banded(size, 1).long() for size in sizes]
    if corners:
        return kron(*lines).bool()
    points = [torch.eye(size).long() for size in sizes]
    terms = [kron(*points[:i], lines[i], *points[i + 1 :]) for i in range(len(sizes))]
    return sum(terms).bool()


def periodic(size):
    """A ring, whose colours at distance two depend on its length."""
    eye = torch.eye(size, dtype=torch.bool)
    return eye | eye.roll(1, 0) | eye.roll(-1, 0)


def random(height, width, density, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(height, width, generator=generator) < density


def random_symmetric(size, density, seed):
    mask = random(size, size, density, seed)
    return mask | mask.T | torch.eye(size, dtype=torch.bool)


def attached(size, links, seed):
    """A graph in which each new vertex is linked to others, rather to those with many links."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.eye(size, dtype=torch.bool)
    for v in range(links, size):
        weights = mask[:v, :v].sum(0).double()
        chosen = torch.multinomial(weights, min(links, v), generator=generator)
        mask[v, chosen] = mask[chosen, v] = True
    return mask


def bundle(cameras, points, seed):
    """Bundle adjustment: two residuals for each observation of a point by a camera."""
    seen = random(cameras, points, 0.4, seed)
    rows = []
    for camera, point in seen.nonzero().tolist():
        row = torch.zeros(6 * cameras + 3 * points, dtype=torch.bool)
        row[6 * camera : 6 * camera + 6] = True
        row[6 * cameras + 3 * point : 6 * cameras + 3 * point + 3] = True
        rows += [row, row]
    return torch.stack(rows)


PATTERNS = {
    "diagonal": lambda: banded(30, 0),
    "tridiagonal": lambda: banded(30, 1),
    "pentadiagonal": lambda: banded(40, 2),
    "ring of 30": lambda: periodic(30),
    "ring of 31": lambda: periodic(31),
    "arrow": lambda: arrow(30, 1),
    "arrow of three": lambda: arrow(30, 3),
    "dense rows apart": lambda: dense_rows_apart(30),
    "blocks": lambda: blocks(30, 5),
    "5-point stencil": lambda: grid(10, 9),
    "9-point stencil": lambda: grid(9, 8, corners=True),
    "7-point stencil": lambda: grid(5, 5, 4),
    "bidiagonal": lambda: banded(30, 1).triu(),
    "dense": lambda: torch.ones(6, 6, dtype=torch.bool),
    "dense row": lambda: torch.ones(1, 9, dtype=torch.bool),
    "dense column": lambda: torch.ones(9, 1, dtype=torch.bool),
    "empty": lambda: torch.zeros(4, 5, dtype=torch.bool),
    "random wide": lambda: random(30, 70, 0.06, 1),
    "random tall": lambda: random(70, 30, 0.06, 2),
    "random square": lambda: random(60, 60, 0.05, 3),
    "random symmetric": lambda: random_symmetric(60, 0.03, 4),
    "random denser": lambda: random_symmetric(50, 0.1, 5),
    "attached": lambda: attached(80, 2, 6),
    "bundle adjustment": lambda: bundle(4, 12, 7),
}
