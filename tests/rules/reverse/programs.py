"""Random programs that write in place and through views, generated from a seed.

A program is a function of x, of shape (4, 3), which may use W, captured, and returns a number. Each
line ran on plain tensors during generation, so a later failure comes from a derivative.
"""

import random
import re
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

W = torch.linspace(-1.5, 1.7, 12, dtype=torch.float64).view(4, 3).flip(0)
X = torch.linspace(0.31, 1.43, 12, dtype=torch.float64).view(4, 3).cos()

# {a} is an earlier tensor, {s} a number computed from one.
RESULTS = (
    *("{a} * 1", "{a}.clone()", "{a}.detach()", "{a} * {s}", "{a} + W.sum()", "{s} - {a}"),
    # Rules that save their result,
    *("{a}.exp()", "{a}.tanh()", "{a}.sigmoid()", "({a} * {a} + 1).sqrt()", "{a}.relu()"),
    # their argument, or nothing.
    *("{a}.sin()", "{a}.square()", "{a} / ({s} * {s} + 2)", "{a}.cumsum(0)", "torch.neg({a})"),
    *("{a} @ {a}.mT", "torch.cat([{a}, {a}])", "torch.stack([{a}, {a}])[1]", "{a}.sort(0).values"),
)
VIEWS = (
    *("{a}[1:]", "{a}[0]", "{a}[..., :2]", "{a}[..., None]", "{a}.view(-1)", "{a}.t()"),
    *("{a}.unbind(0)[1]", "{a}.chunk(2)[0]", "{a}.split(1, -1)[0]", "{a}.diagonal()", "{a}[::2]"),
    *("{a}.mT", "{a}.unsqueeze(0)", "{a}.squeeze()", "{a}.reshape(-1)", "{a}.view_as({a})"),
    *("{a}.flatten()", "{a}.unfold(0, 2, 1)[0]", "{a}.narrow(0, 0, 2)", "{a}.expand(2, 4, 3)"),
    *("{a}.select(0, 1)", "{a}.permute(1, 0)", "{a}.swapaxes(0, -1)", "{a}[:].detach()"),
)
WRITES = (
    *("{a}.mul_(2)", "{a}.mul_({s})", "{a}.add_({s})", "{a} -= {s}", "{a}.sin_()", "{a}.neg_()"),
    *("{a}.exp_()", "{a}.tanh_()", "{a}.sigmoid_()", "{a}.zero_()", "{a}.clamp_(min=0.1)"),
    *("{a}.copy_({s})", "{a}.copy_(W)", "{a}[0] = {s}", "{a}[..., 1] = 0.5", "{a}[-1] *= {s}"),
    *(
        "{a}[{a} > 0.3] = {s}",
        "{a}.masked_fill_({a} > 0.3, 0.7)",
        "{a}.fill_({s})",
        "{a} *= {a}.clone()",
    ),
    *("{a}[torch.tensor([0, 1])] = {s}", "{a}.index_add_(0, torch.tensor([0]), {a}[:1] * {s})"),
    *("{a}.unsqueeze_(0)", "{a}.squeeze_()", "{a}.t_()", "{a}.div_({s} * {s} + 2)", "{a}.relu_()"),
)
# Most of these are rejected.
RARE = ("W.mul_({s})", "x.mul_(2)", "x[0].add_({s})", "x.view(-1).sin_()", "W[0] = {s}")


def program(seed: int) -> str:
    """The lines of a program."""
    choose = random.Random(seed)
    names = ["x", "W"]
    lines: list[str] = []
    tensors = {"torch": torch, "x": X.clone(), "W": W.clone()}

    def recent(candidates: list[str]) -> str:
        return choose.choice(candidates[-3:])

    def add(kind: tuple[str, ...], assigned: bool) -> None:
        made = names[2:] or ["x"]  # torch forbids writing to some views
        a, b = recent(made), choose.choice(names)
        text = choose.choice(kind).format(a=a, s=f"{b}.mean()")
        name = f"t{len(lines)}"
        if assigned:
            text = f"{name} = {text}"
        # torch's own nodes do not support a change of shape under no_grad.
        if choose.random() < 0.06 and not re.search(r"(t|squeeze)_\(", text):
            text = f"with torch.no_grad(): {text}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(text, {}, tensors)
        except (RuntimeError, IndexError):
            return  # the shapes do not fit
        lines.append(text)
        if assigned:
            names.append(name)

    if choose.random() < 0.9:
        add(RESULTS, assigned=True)
    for _ in range(choose.randint(3, 8)):
        kind = choose.choices((RESULTS, VIEWS, WRITES, RARE), (8, 8, 9, 0.4))[0]
        add(kind, assigned=kind in (RESULTS, VIEWS))
    used = [f"{name}.sin().sum()" for name in names[2:]] + ["(x * x).sum()"]
    return "\n".join([*lines, f"return {' + '.join(used)}"])


def function(source: str) -> Callable[[Tensor], Tensor]:
    """The program as a function, which captures a W of its own."""
    names = {"torch": torch, "W": W.clone()}
    body = "\n".join(f"    {line}" for line in source.split("\n"))
    exec(f"def f(x):\n{body}", names)
    made: Callable[[Tensor], Tensor] = names["f"]  # type: ignore[assignment]
    return made
