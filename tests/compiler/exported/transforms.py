"""The functions that the table of docs/deploy.md exports, one for each transform."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import torchlayers as tl

BATCH = {0: "batch"}


class Exported(NamedTuple):
    """A function to export.

    Attributes:
        function, args: what is exported.
        batch: what is passed for ``dynamic`` where the batch is dynamic; None if there is none.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    batch: tuple[Any, ...] | None = (BATCH,)


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)
    return nn.Sequential(*layers).requires_grad_(False).to(dtype)


def images(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 1)]
    return nn.Sequential(*layers).requires_grad_(False).to(dtype)


def differences(x: torch.Tensor) -> torch.Tensor:
    return (x[1:] - x[:-1]) ** 3 / 0.3


def stepped(x: torch.Tensor) -> torch.Tensor:
    """The sum of the states of a recurrence with an input at each step."""
    return tl.scan(lambda c, u: ((c * x + 0.1 * u).sin(), c.sum()), x, x.expand(6, 3))[1].sum()


def chosen(x: torch.Tensor) -> torch.Tensor:
    return tl.cond(x.sum() > 0, lambda x: x.sin().sum(), lambda x: (x**2).sum(), x)


def root(a: torch.Tensor) -> torch.Tensor:
    """The solution of x + exp(x) = a, elementwise, by Newton's method."""

    def newton(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return tl.fori_loop(0, 8, lambda _, x: x - (x + x.exp() - a) / (1 + x.exp()), x)

    return tl.custom_root(lambda x, a: x + x.exp() - a)(newton)(torch.zeros_like(a), a)


def table(dtype: torch.dtype) -> dict[str, Exported]:
    """Returns the functions by the names of the transforms."""
    net, cnn = network(dtype), images(dtype)
    energy = lambda x: net(x).sum()  # noqa: E731
    torch.manual_seed(2)
    xs = torch.randn(5, 3, dtype=dtype)
    x, direction = xs[0].clone(), xs.cos()
    parameters = dict(cnn.named_parameters())
    linear = tl.linearize(energy, x)[1]

    def of_image(parameters: dict[str, torch.Tensor], image: torch.Tensor) -> torch.Tensor:
        return tl.functional_call(cnn, parameters, (image[None],)).sum()

    def series(x: torch.Tensor) -> Any:
        return tl.jet(energy, (x,), ((torch.ones_like(x), torch.zeros_like(x)),))

    def noisy(key: torch.Tensor, xs: torch.Tensor) -> torch.Tensor:
        return tl.grad(lambda x: energy(x + tl.random.normal(key, (3,), dtype=dtype)))(xs)

    return {
        "grad": Exported(tl.grad(energy), (xs,)),
        "vjp": Exported(lambda x, g: tl.vjp(net, x)[1](g)[0], (xs, xs[:, :1]), (BATCH, BATCH)),
        "jvp": Exported(lambda x, t: tl.jvp(net, (x,), (t,)), (xs, direction), (BATCH, BATCH)),
        "vmap": Exported(tl.vmap(net), (xs,)),
        "vmap(grad)": Exported(tl.vmap(tl.grad(energy)), (xs,)),
        "vmap(grad) of a CNN's parameters": Exported(
            tl.vmap(tl.grad(of_image), in_dims=(None, 0)),
            (parameters, torch.randn(4, 2, 8, 8, dtype=dtype)),
            (None, BATCH),
        ),
        "jacrev": Exported(tl.jacrev(net), (x,), None),
        "vmap(jacrev)": Exported(tl.vmap(tl.jacrev(net)), (xs,)),
        "jacfwd": Exported(tl.jacfwd(net), (x,), None),
        "vmap(jacfwd)": Exported(tl.vmap(tl.jacfwd(net)), (xs,)),
        "hessian": Exported(tl.hessian(energy), (x,), None),
        "vmap(hessian)": Exported(tl.vmap(tl.hessian(energy)), (xs,)),
        "hvp": Exported(lambda x, t: tl.hvp(energy, (x,), (t,)), (xs, direction), (BATCH, BATCH)),
        "laplacian": Exported(tl.vmap(tl.laplacian(energy)), (xs,)),
        "jet": Exported(tl.vmap(series), (xs,)),
        "a sparse Jacobian": Exported(tl.jacfwd(differences, sparse=True), (x,), None),
        "vmap of a sparse Hessian": Exported(
            tl.vmap(tl.hessian(lambda x: differences(x).sum(), sparse=True)), (xs,)
        ),
        "a CSR Jacobian": Exported(tl.jacrev(differences, sparse=True, layout="csr"), (x,), None),
        "linearize's map": Exported(linear, (x,), None),
        "vmap of linearize's map": Exported(tl.vmap(linear), (xs,)),
        "custom_root": Exported(tl.vmap(tl.grad(lambda a: root(a).sum())), (xs,)),
        "scan": Exported(tl.vmap(tl.grad(stepped)), (xs,)),
        "cond": Exported(tl.grad(chosen), (x,), None),
        "vmap(grad) of cond": Exported(tl.vmap(tl.grad(chosen)), (xs,)),
        "checkpoint": Exported(tl.vmap(tl.grad(tl.checkpoint(energy))), (xs,)),
        "keyed random numbers": Exported(noisy, (tl.random.key(-7), xs), (None, BATCH)),
    }


NAMES = tuple(table(torch.float32))
EXAMPLES = ("static", "dynamic")
DTYPES = (torch.float32, torch.float64)


def exported(
    name: str, dtype: torch.dtype, sizes: str
) -> "tuple[Exported, tl.compiled.ExportedFunction] | None":
    """Exports one of them; returns None if it has no batch that could be dynamic."""
    row = table(dtype)[name]
    if sizes == "static":
        return row, tl.export(row.function, *row.args)
    if row.batch is None:
        return None
    return row, tl.export(row.function, *row.args, dynamic=row.batch)
