"""What each transform costs, relative to one call of the function that it transforms.

``python -m benchmarks.costs`` writes a table into docs/which-transform.md; with ``--quick`` it is
rough, and printed only. The function is a network of four layers; alternatives that compute the
same are compared before anything is timed.
"""

import itertools
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.peak import peak_bytes
from benchmarks.timing import Effort, by_turns

WIDTH, LAYERS, INPUTS, OUTPUTS, SAMPLES, CELLS = 256, 4, 32, 8, 64, 1000

Work = Callable[[], Tensor]
Section = tuple[str, Work, dict[str, Work]]  # what it is of, the function, the transforms


def weights(inputs: int, outputs: int) -> list[Tensor]:
    sizes = [inputs, *[WIDTH] * (LAYERS - 1), outputs]
    return [torch.randn(b, a) / a**0.5 for a, b in itertools.pairwise(sizes)]


def network(layers: list[Tensor], x: Tensor) -> Tensor:
    for weight in layers[:-1]:
        x = F.linear(x, weight).tanh()
    return F.linear(x, layers[-1])


def gradients_of_batch() -> Section:
    """Of a loss of a batch, with respect to the parameters."""
    params = weights(INPUTS, OUTPUTS)
    x, labels = torch.randn(SAMPLES, INPUTS), torch.randint(OUTPUTS, (SAMPLES,))
    directions = [torch.randn_like(weight) for weight in params]

    def loss(params: list[Tensor], x: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(network(params, x), label)

    def of_params(params: list[Tensor]) -> Tensor:
        return loss(params, x, labels)

    def norms_of_gradients() -> Tensor:
        gradients = tl.vmap(tl.grad(loss), (None, 0, 0))(params, x, labels)
        return torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()

    compiled = tl.compile(tl.grad(of_params), wait=True)
    works = {
        "`grad`": lambda: tl.grad(of_params)(params)[0],
        "`compile(grad)`": lambda: compiled(params)[0],
        "`jvp`": lambda: tl.jvp(of_params, (params,), (directions,))[1],
        "`hvp`": lambda: tl.hvp(of_params, (params,), (directions,))[0][0],
        "norms by `vmap(grad)`": norms_of_gradients,
        "`per_sample_norms`": lambda: tl.per_sample_norms(loss)(params, x, labels),
    }
    check_close(works["`grad`"], works["`compile(grad)`"])
    check_close(works["norms by `vmap(grad)`"], works["`per_sample_norms`"])
    return f"the loss of {SAMPLES} samples, by the parameters", lambda: of_params(params), works


def jacobians() -> list[Section]:
    """Of a network with few outputs, and of one with few inputs."""
    found: list[Section] = []
    for inputs, outputs in ((INPUTS, OUTPUTS), (OUTPUTS, INPUTS)):
        layers, x = weights(inputs, outputs), torch.randn(inputs)

        def f(x: Tensor, layers: list[Tensor] = layers) -> Tensor:
            return network(layers, x)

        works: dict[str, Work] = {
            "`jacrev`": lambda f=f, x=x: tl.jacrev(f)(x),
            "`jacfwd`": lambda f=f, x=x: tl.jacfwd(f)(x),
        }
        check_close(*works.values())
        found.append((f"a network, {inputs} numbers to {outputs}", lambda f=f, x=x: f(x), works))
    return found


def second_derivatives() -> Section:
    """Of a scalar network, with respect to its input, at each sample of a batch."""
    layers, points = weights(INPUTS, 1), torch.randn(SAMPLES, INPUTS)
    v = torch.randn(INPUTS)

    def f(x: Tensor) -> Tensor:
        return network(layers, x).sum()

    def laplacian(points: Tensor) -> Tensor:
        return tl.vmap(tl.laplacian(f))(points)

    _, product = tl.linearize(tl.vmap(tl.grad(f)), points)
    compiled = tl.compile(laplacian, wait=True)
    works: dict[str, Work] = {
        "`grad`": lambda: tl.vmap(tl.grad(f))(points),
        "`hvp`": lambda: tl.vmap(lambda x: tl.hvp(f, (x,), (v,))[0])(points),
        "one product after `linearize(grad)`": lambda: product(v.expand(SAMPLES, -1)),
        "`hessian`": lambda: tl.vmap(tl.hessian(f))(points),
        "trace of `hessian`": lambda: tl.vmap(lambda x: tl.hessian(f)(x).trace())(points),
        "`laplacian`": lambda: laplacian(points),
        "`compile(laplacian)`": lambda: compiled(points),
        "`laplacian`, 4 random directions": lambda: tl.vmap(
            tl.laplacian(f, samples=4), randomness="different"
        )(points),
        "order 4 by nested `jvp`s": lambda: tl.vmap(lambda x: along(f, x, v, 4))(points),
        "order 4 by `jet`": lambda: tl.vmap(
            lambda x: tl.jet(f, (x,), ([v, None, None, None],))[1][3]
        )(points),
    }
    _, product_1, product_2, _, trace, of_trace, of_compiled, _, jvps, jet = works.values()
    for one, other in (
        (product_1, product_2),
        (trace, of_trace),
        (trace, of_compiled),
        (jvps, jet),
    ):
        check_close(one, other)
    return f"a network, {INPUTS} numbers to 1, at {SAMPLES} points", lambda: f(points), works


def along(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor, order: int) -> Tensor:
    """The derivative of that order along v, by nested jvps."""
    if order == 0:
        return f(x)
    return tl.jvp(lambda x: along(f, x, v, order - 1), (x,), (v,))[1]


def sparse_jacobian() -> Section:
    """Of a function on a grid, in which each result depends on three neighbours."""
    u = torch.linspace(0, 1, CELLS)

    def f(u: Tensor) -> Tensor:
        left, right = torch.cat([u[:1] * 0, u[:-1]]), torch.cat([u[1:], u[-1:] * 0])
        return left - 2 * u + right - u.exp()

    sparse = tl.jacfwd(f, sparse=True, layout="values")
    entries = tl.jacfwd(f, sparse=True)(u).indices()
    works: dict[str, Work] = {
        "`jacfwd`": lambda: tl.jacfwd(f)(u),
        "`jacfwd(sparse=True)`": lambda: sparse(u),
    }
    torch.testing.assert_close(tl.jacfwd(f)(u)[tuple(entries)], sparse(u))
    return f"{CELLS} equations, each of three neighbours", lambda: f(u), works


def check_close(one: Work, other: Work) -> None:
    """Raises AssertionError unless both return the same, within what float32 rounds."""
    expected = one()
    atol = 1e-4 * expected.abs().max().item()
    torch.testing.assert_close(other(), expected, rtol=1e-4, atol=atol)


def measure(quick: bool) -> dict[str, str]:
    torch.manual_seed(0)
    effort = Effort(rounds=3, block=0.02) if quick else Effort(rounds=11, block=0.1)
    tables = []
    for what, plain, works in (
        gradients_of_batch(),
        *jacobians(),
        second_derivatives(),
        sparse_jacobian(),
    ):
        works = {"the function": plain, **works}
        times = by_turns(works, effort, time.process_time)
        cost = times["the function"].median
        rows = [
            [name, f"{seconds * 1e6:,.0f}", f"{seconds / cost:.1f}", kib(works[name])]
            for name, seconds in ((name, timing.median) for name, timing in times.items())
        ]
        header = (what, "µs", "in calls of the function", "peak memory, KiB")
        tables.append(page.table(header, rows))
    text = "\n\n".join(tables)
    return {
        "which-transform.md": f"{text}\n\nCPU time on one thread, medians. "
        f"{machine.describe()}; `python -m benchmarks.costs`."
    }


def kib(work: Work) -> str:
    return f"{peak_bytes(work) / 2**10:,.0f}"


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "costs")
