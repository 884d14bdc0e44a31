"""Shared by the worked examples: compares their figures with the expected ones."""

import sys


def check(figures: dict[str, float], expected: dict[str, tuple[float, float]]) -> None:
    """Prints each figure beside the expected one; exits if any is not within its tolerance."""
    missed = False
    for what, (value, within) in expected.items():
        fits = abs(figures[what] - value) <= within
        missed |= not fits
        verdict = "reproduced" if fits else "NOT REPRODUCED"
        print(f"{what}: {figures[what]:.4g}, expected {value:.4g} within {within:g}: {verdict}")
    if missed:
        sys.exit(1)
