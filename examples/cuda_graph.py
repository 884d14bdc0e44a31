"""CUDA graphs: a training step with second derivatives, launched on the GPU by a single call.

A small network learns a function from its values and its slopes (Sobolev training). A step is some
hundred small operators: the forward, the slopes by ``vmap(grad)``, the gradient of the loss by
``grad_and_value``, and Adam's update. The GPU finishes each before the CPU has launched the next.
``torch.cuda.graph`` captures them once, and ``replay`` launches all of them in one call.

Captured operators may not make the CPU wait, nor use other memory at each step: so the batch and
the parameters are tensors that are written to in place.

These figures are reproduced, in float64:

- Training by replays ends with the same parameters as training step by step: within 1e-10.
- It ends at a mean squared error of values and slopes below 1e-3.

The times of a replayed and an eager step are printed. Without a GPU there is nothing to show.
"""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from examples.figures import check
from torchlayers import grad, grad_and_value, vmap

Parameters = dict[str, Tensor]

WIDTH = 32
BATCH = 128
STEPS = 2000
WARM_UP = 3  # steps that allocate the memory that stays, which a captured step must not
EXPECTED = {
    "parameters by replays, from those by steps": (0.0, 1e-10),
    "mean squared error of values and slopes": (0.0, 1e-3),
}
RATE, MOMENTS, EPSILON = 3e-3, (0.9, 0.999), 1e-8


def network(parameters: Parameters, x: Tensor) -> Tensor:
    """A scalar function of a scalar."""
    y = torch.tanh(x * parameters["in"] + parameters["bias"])
    return torch.tanh(parameters["middle"] @ y) @ parameters["out"]


def loss(parameters: Parameters, x: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
    fitted, slope = vmap(lambda x: (network(parameters, x), grad(network, 1)(parameters, x)))(x)
    return (fitted - values).square().mean() + (slope - slopes).square().mean()


def start(device: str) -> Parameters:
    generator = torch.Generator().manual_seed(0)
    shapes = {"in": (WIDTH,), "bias": (WIDTH,), "middle": (WIDTH, WIDTH), "out": (WIDTH,)}
    return {
        name: (
            torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(shape[-1])
        ).to(device)
        for name, shape in shapes.items()
    }


def trainer(parameters: Parameters) -> tuple[Callable[[], None], Tensor]:
    """A step that updates the parameters in place, and the tensor to which it writes the loss."""
    device = parameters["in"].device
    x = torch.linspace(-2, 2, BATCH, dtype=torch.float64, device=device)
    values, slopes = torch.sin(2 * x), 2 * torch.cos(2 * x)
    means, squares = ({k: torch.zeros_like(p) for k, p in parameters.items()} for _ in range(2))
    decays = torch.ones(2, dtype=torch.float64, device=device)  # MOMENTS ** number of steps
    moments = torch.tensor(MOMENTS, dtype=torch.float64, device=device)
    losses = torch.zeros((), dtype=torch.float64, device=device)

    def step() -> None:
        gradients, value = grad_and_value(loss)(parameters, x, values, slopes)
        losses.copy_(value)
        decays.mul_(moments)
        for name, gradient in gradients.items():
            means[name].lerp_(gradient, 1 - MOMENTS[0])
            squares[name].lerp_(gradient.square(), 1 - MOMENTS[1])
            spread = (squares[name] / (1 - decays[1])).sqrt() + EPSILON
            parameters[name].sub_(RATE * means[name] / (1 - decays[0]) / spread)

    return step, losses


def captured(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The step, captured after warming up on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # captures the operators without running them
        step()
    return graph


def seconds(step: Callable[[], None], count: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def main() -> None:
    if not torch.cuda.is_available():
        print("This example needs a GPU: it records what one is given to do.")
        return
    by_steps, by_replays = start("cuda"), start("cuda")
    step, losses = trainer(by_steps)
    one_by_one = seconds(step, STEPS)
    step, _ = trainer(by_replays)
    graph = captured(step)
    at_once = seconds(graph.replay, STEPS - WARM_UP)
    print(f"a step: {one_by_one * 1e6:.0f} us one by one, {at_once * 1e6:.0f} us replayed")
    figures = {
        "parameters by replays, from those by steps": max(
            float((by_steps[name] - by_replays[name]).abs().max()) for name in by_steps
        ),
        "mean squared error of values and slopes": float(losses),
    }
    check(figures, EXPECTED)


if __name__ == "__main__":
    main()
