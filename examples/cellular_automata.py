"""Cellular automata: every elementary rule at once, each writing its history in place.

An automaton is a row of cells, dead or alive, and a rule of eight bits: the next state of a cell,
given its own and its two neighbours' states. The program below is for one automaton. It creates a
board of zeros, writes the first generation into it, and then writes each generation below the last,
reading a cell's neighbourhood from the board itself. vmap runs it for all 256 rules, each with a
separate board. Another program, for traffic, moves cars in place one after the other, in the order
of the road.

Four figures are reproduced:

- Rule 90 from a single cell draws Sierpinski's triangle: row t has two to the number of ones in t
  written in binary, and 64 rows have 3 ** 6 = 729 live cells.
- Rule 30's middle column begins as Wolfram has it (A051023 in the On-Line Encyclopedia of Integer
  Sequences): its first 24 cells, read as a binary number, are 14468499.
- 64 of the rules treat left and right alike: from a random row and from its mirror image they draw
  boards that are mirror images of each other.
- Rule 184 is traffic on one lane. At density d the flow is the smaller of d and 1 - d: 0.3 of the
  cells' cars get through at a density of 0.3, and 0.25 at 0.75 (within 0.02).

``python -m examples.cellular_automata --picture FILE`` draws the boards of six rules.

Source: Wolfram, "Statistical mechanics of cellular automata" (1983); Nagel and Schreckenberg, "A
    cellular automaton model for freeway traffic" (1992), for traffic without randomness.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from examples.figures import check
from torchlayers import vmap

ROWS = 64
RULES = torch.arange(256)
SHOWN = (22, 30, 54, 90, 110, 150)
DENSITIES = torch.tensor([0.3, 0.75])
ROAD, WARM_UP, STEPS = 400, 400, 200

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "rule 90, live cells": (729, 0),
    "rule 30, middle column": (14468499, 0),
    "rules that treat left and right alike": (64, 0),
    "rule 184, flow at a density of 0.3": (0.3, 0.02),
    "rule 184, flow at a density of 0.75": (0.25, 0.02),
}


def history(rule: Tensor, first: Tensor, rows: int) -> Tensor:
    """The board of one automaton: one row per generation, on a circle of cells."""
    outcomes = torch.zeros(8, dtype=torch.int64)
    for pattern in range(8):
        outcomes[pattern] = rule >> pattern & 1
    board = torch.zeros(rows, len(first), dtype=torch.int64)
    board[0] = first
    for row in range(1, rows):
        above = board[row - 1]
        left, right = above.roll(1), above.roll(-1)
        board[row] = outcomes[4 * left + 2 * above + right]
    return board


def flow(cars: Tensor, generations: int) -> Tensor:
    """The share of cells that a car leaves per generation, cars moving in place by rule 184."""
    road = cars.clone()
    moved = torch.zeros(())
    for _ in range(generations):
        moves = road & ~road.roll(-1)
        road[moves] = False
        road |= moves.roll(1)
        moved += moves.float().mean()
    return moved / generations


def boards_from_one_cell() -> Tensor:
    first = torch.zeros(2 * ROWS + 1, dtype=torch.int64)
    first[ROWS] = 1
    return vmap(history, in_dims=(0, None, None))(RULES, first, ROWS)


def count_alike() -> int:
    first = torch.randint(0, 2, (2 * ROWS,))
    run = vmap(history, in_dims=(0, None, None))
    boards, mirrored = run(RULES, first, 8), run(RULES, first.flip(0), 8)
    return int((boards == mirrored.flip(-1)).all(-1).all(-1).sum())


def traffic() -> Tensor:
    roads = torch.rand(len(DENSITIES), ROAD).argsort(-1) < (DENSITIES[:, None] * ROAD)
    settled = vmap(lambda cars: history(torch.tensor(184), cars.long(), WARM_UP)[-1])(roads)
    return vmap(lambda cars: flow(cars, STEPS))(settled.bool())


def save_picture(path: Path, boards: Tensor) -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, rule in zip(figure.subplots(2, 3).flat, SHOWN, strict=True):
        axes.imshow(boards[rule].numpy(), cmap="binary", interpolation="nearest")
        axes.set(title=f"Rule {rule}", xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="Every elementary cellular automaton at once.")
    parser.add_argument("--picture", type=Path, help="draw the boards of six rules to this file")
    path = parser.parse_args().picture
    torch.manual_seed(0)
    boards = boards_from_one_cell()
    middle = boards[30, :24, ROWS]
    at_low, at_high = traffic().tolist()
    figures = {
        "rule 90, live cells": float(boards[90].sum()),
        "rule 30, middle column": float(middle @ 2 ** torch.arange(23, -1, -1)),
        "rules that treat left and right alike": count_alike(),
        "rule 184, flow at a density of 0.3": at_low,
        "rule 184, flow at a density of 0.75": at_high,
    }
    check(figures, EXPECTED)
    if path is not None:
        save_picture(path, boards)


if __name__ == "__main__":
    main()
