"""Programs that read tensors' values and write to Python: compiled, compared with eager code.

python -m benchmarks.compiled_programs measures the table of docs/benchmarks.md and writes it there.
It needs torchdiffeq and captum.
"""

import itertools
import types
import warnings
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

import torchlayers
from benchmarks import machine, page
from benchmarks.timing import Effort, Timing, by_turns

EAGER, COMPILED, OURS = "eager", "torch.compile", "torchlayers.compile"
PEERS = (EAGER, COMPILED, OURS)
Call = Callable[[Tensor], Any]
Compile = Callable[[Any], Any]


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )


def training(compile: Compile) -> Call:
    """A step with clipping, a skip of losses that are not finite, an average, and a log."""
    net, average = network(32), network(32)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    log = types.SimpleNamespace(losses=[], skipped=0)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        if not torch.isfinite(loss):
            log.skipped += 1
            return loss.detach()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(net.parameters(), average.parameters(), strict=True):
                q.lerp_(p, 0.01)
        log.losses.append(loss.item())
        return loss.detach()

    return compile(step)  # type: ignore[no-any-return]


def lbfgs(compile: Compile) -> Call:
    """A step of L-BFGS with its line search, whose closure is compiled."""
    net = network(32)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    batch = torch.zeros(16, 8)

    @compile
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (net(batch) - batch.sum(1, keepdim=True).sin()).square().mean()
        loss.backward()
        return loss

    def step(x: Tensor) -> Any:
        batch.copy_(x)
        return optimizer.step(closure)

    return step


def ode(compile: Compile) -> Call:
    """dopri5 of torchdiffeq, whose steps adapt to the error."""
    import torchdiffeq

    torch.manual_seed(0)
    weight, times = torch.randn(8, 8) * 0.3, torch.tensor([0.0, 1.0])

    def solve(x: Tensor) -> Any:
        return torchdiffeq.odeint(lambda t, y: (y @ weight).tanh() - y, x, times, rtol=1e-4)[-1]

    return compile(solve)  # type: ignore[no-any-return]


def newton(compile: Compile) -> Call:
    """Newton's method until it has converged, for a root of each number."""

    def root(x: Tensor) -> Tensor:
        target, y = x.abs() + 1, torch.ones_like(x)
        while True:
            step = (y * y * y + y - target) / (3 * y * y + 1)
            y = y - step
            if step.abs().max() < 1e-5:
                return y

    return compile(root)  # type: ignore[no-any-return]


def cache(compile: Compile) -> Call:
    """Attention to 12 tokens, one after the other, with a cache that grows."""
    torch.manual_seed(0)
    queries, keys, values = torch.randn(3, 8, 8).unbind()
    state: dict[str, Tensor] = {}

    @compile
    def attend(x: Tensor) -> Tensor:
        state["k"] = torch.cat([state["k"], x @ keys])
        state["v"] = torch.cat([state["v"], x @ values])
        return ((x @ queries) @ state["k"].T).softmax(-1) @ state["v"]

    def decode(x: Tensor) -> Tensor:
        state.update(k=torch.zeros(0, 8), v=torch.zeros(0, 8))
        for token in x[:12].split(1):
            result = attend(token)
        return result  # type: ignore[no-any-return]

    return decode


def position(compile: Compile) -> Call:
    """Attention to 12 tokens, one after the other, with a cache that is written at a position."""
    torch.manual_seed(0)
    queries, keys, values = torch.randn(3, 8, 8).unbind()
    state = types.SimpleNamespace(k=torch.zeros(16, 8), v=torch.zeros(16, 8), length=0)

    @compile
    def attend(x: Tensor) -> Tensor:
        state.k[state.length], state.v[state.length] = (x @ keys)[0], (x @ values)[0]
        state.length += 1
        scores = (x @ queries) @ state.k[: state.length].T
        return scores.softmax(-1) @ state.v[: state.length]

    def decode(x: Tensor) -> Tensor:
        state.length = 0
        for token in x[:12].split(1):
            result = attend(token)
        return result  # type: ignore[no-any-return]

    return decode


def features(compile: Compile) -> Call:
    """A forward pass whose hooks store what each layer returns."""
    net, stored = network(32).requires_grad_(False), {}
    for name, module in net.named_children():
        module.register_forward_hook(
            lambda module, args, out, name=name: stored.update({name: out.detach()})
        )
    call = compile(lambda x: net(x))
    return lambda x: [call(x), *stored.values()]


def saliency(compile: Compile) -> Call:
    """captum's Saliency."""
    from captum.attr import Saliency

    attribute = Saliency(network(32)).attribute
    return compile(lambda x: attribute(x, target=0))  # type: ignore[no-any-return]


PROGRAMS = {
    "a training step: clipped, skipped where not finite, averaged, logged": training,
    "a step of L-BFGS with its line search, the closure compiled": lbfgs,
    "torchdiffeq's dopri5": ode,
    "Newton's method until it has converged": newton,
    "attention to 12 tokens with a growing cache": cache,
    "the same with a cache that is written at a position": position,
    "a forward pass with hooks that store features": features,
    "captum's Saliency": saliency,
}


def inputs() -> Sequence[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 8, generator=generator) for _ in range(4)]


def peers(program: Callable[[Compile], Call]) -> dict[str, Callable[[], Any]]:
    """Calls with changing inputs, of each peer that takes the program and has eager's results."""
    compilers: dict[str, Compile] = {
        EAGER: lambda f: f,
        COMPILED: torch.compile,
        OURS: lambda f: torchlayers.compile(f, wait=True),
    }
    expected, works = [], {}
    for name, compile in compilers.items():
        call = program(compile)
        try:
            results = [call(x) for x in [*inputs()] * 3]
        except Exception:
            if name != COMPILED:  # which may refuse a program
                raise
            continue
        expected = expected or results
        torch.testing.assert_close(results, expected, rtol=1e-3, atol=1e-4)
        works[name] = _calls(call)
    return works


def _calls(call: Call) -> Callable[[], Any]:
    turns = itertools.cycle(inputs())
    return lambda: call(next(turns))


def row(program: Callable[[Compile], Call], effort: Effort) -> dict[str, Timing]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.compile's
        return by_turns(peers(program), effort, process_time)


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(3, 0.02) if quick else Effort(15, 0.2)
    rows = []
    with page.progress(len(PROGRAMS)) as advance:
        for name, program in PROGRAMS.items():
            times = row(program, effort)
            rows.append([name, *(_cell(times.get(peer)) for peer in PEERS)])
            advance()
    header = ["µs per call", *PEERS]
    return {"benchmarks.md": f"{page.table(header, rows)}\n\n{machine.describe()}."}


def _cell(timing: Timing | None) -> str:
    return "refused" if timing is None else f"{timing.median * 1e6:.0f}"


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "compiled programs")
