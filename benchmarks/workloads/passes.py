"""For each pass of the compiler, a program that needs it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import torchlayers as tl
from benchmarks import implicit, sparse_jacobians
from benchmarks.workloads import jacobians, losses, physics, real_size, torch_operators
from benchmarks.workloads.networks import inputs, mlp, mlp_parameters
from benchmarks.workloads.workload import Parameters, Workload


class Program(NamedTuple):
    """A function to compile, and its arguments."""

    name: str
    func: Callable[..., Any]
    arguments: tuple[Any, ...]


def _of(workload: Workload) -> Program:
    func = workload.program(tl, torch_operators)
    return Program(str(workload), func, workload.arguments)


def equilibrium() -> Program:
    solution, _, arguments = implicit.equilibrium(128, 128, "bicgstab")
    func = tl.grad(lambda *args: solution(*args).square().sum(), (0, 1))
    return Program("gradient of a deep equilibrium layer, 128 x 128", func, tuple(arguments))


def stencil() -> Program:
    problem = sparse_jacobians.PROBLEMS[1]
    x = problem.point()

    def f(x: Tensor) -> Tensor:
        return problem.func(x, torch)  # type: ignore[no-any-return]

    colors = tl.coloring(tl.sparsity(f, x), "columns")
    func = tl.jacfwd(f, sparse=colors, layout="values")
    return Program("sparse Jacobian, 5-point stencil", func, (x,))


def trace_of_hessian() -> Program:
    def laplacian(params: Parameters, points: Tensor) -> Tensor:
        hessian = tl.hessian(lambda point: mlp(torch_operators, params, point)[0])
        return tl.vmap(lambda point: hessian(point).trace())(points)

    arguments = mlp_parameters([3, 64, 64, 1]), inputs(1024, 3)
    return Program("trace of a Hessian, MLP, 64 wide, 1024 points", laplacian, arguments)


def jacobian_vector() -> Program:
    def product(weight: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return tl.jacrev(lambda x: (weight @ x).tanh())(x) @ v

    return Program("Jacobian times vector, 512 x 512", product, (inputs(512, 512), *inputs(2, 512)))


def normalized() -> Program:
    def slopes(scale: Tensor, points: Tensor) -> Tensor:
        energy = tl.grad(lambda x: ((x - scale.sin()) * scale.exp()).tanh().sum())
        return tl.vmap(energy)(points)

    return Program("slopes of a flow, 4096 points", slopes, (inputs(64), inputs(4096, 64)))


def recurrent_scan() -> Program:
    def loss(weight: Tensor, xs: Tensor) -> Tensor:
        def step(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            state = torch.tanh(state @ weight + x)
            return state, state.clone()

        return tl.scan(step, torch.zeros_like(xs[0]), xs)[1].square().sum()  # type: ignore[no-any-return]

    return Program(
        "gradient of a scan, 64 steps", tl.grad(loss), (inputs(64, 64) / 8, inputs(64, 8, 64))
    )


NEEDED_BY: dict[str, Callable[[], Program]] = {
    "drop_outputs": lambda: _of(real_size.private_step(64)),
    "hoist_invariants": equilibrium,
    "drop_copies": lambda: _of(real_size.laplacian_loss(width=128, points=2048)),
    "share_common": lambda: _of(real_size.laplacian_loss(width=128, points=2048)),
    "merge_views": trace_of_hessian,
    "fold_constants": lambda: _of(physics.laplacian(width=64, points=1024)),
    "read_entries": stencil,
    "transpose_products": lambda: _of(physics.maml(width=64, tasks=32)),
    "share_factors": trace_of_hessian,
    "contract_outer": lambda: _of(jacobians.neural_tangent_kernel(width=128, samples=32)),
    "associate_products": jacobian_vector,
    "contract_traces": trace_of_hessian,
    "contract_adjoint": lambda: _of(physics.laplacian(width=64, points=1024)),
    "share_scaled": lambda: _of(real_size.laplacian_loss(width=128, points=2048)),
    "join_sums": lambda: _of(real_size.laplacian_loss(width=128, points=2048)),
    "concatenate_factors": lambda: _of(real_size.recurrent(width=128, steps=32, samples=16)),
    "concatenate_slices": lambda: _of(real_size.recurrent(width=128, steps=32, samples=16)),
    "mask_pooled": lambda: _of(real_size.ensemble_of_cnns(members=8, images=32)),
    "expand_convolutions": lambda: _of(losses.cnn_gradients(8)),
    "expand_small": lambda: _of(physics.laplacian(width=16, points=32)),
    "compute_once": normalized,
    "lay_batches_innermost": lambda: _of(physics.force_constants(27)),
    "share_steps": recurrent_scan,
}
