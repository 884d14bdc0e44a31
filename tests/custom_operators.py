"""Operators of one's own, made with torch.library, for rules from Python."""

from types import SimpleNamespace

import torch
from torch import Tensor


def define(library: str) -> SimpleNamespace:
    """Defines them in the library, under the names of the result's attributes."""

    def custom(name):
        return torch.library.custom_op(f"{library}::{name}", mutates_args=())

    @custom("cube")
    def cube(x: Tensor) -> Tensor:
        return x**3

    @custom("weighed")
    def weighed(x: Tensor, y: Tensor, *, scale: float) -> Tensor:
        return scale * x * y

    @custom("sine_and_cosine")
    def sine_and_cosine(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()

    @custom("product_of_list")
    def product_of_list(xs: list[Tensor], power: int) -> Tensor:
        return torch.stack(xs).prod(0) ** power

    @custom("powers")
    def powers(x: Tensor) -> list[Tensor]:
        return [x * 1, x**2, x**3]

    @custom("value_and_argmax")
    def value_and_argmax(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.max(), x.argmax()

    return SimpleNamespace(
        custom=custom,
        cube=cube,
        weighed=weighed,
        sine_and_cosine=sine_and_cosine,
        product_of_list=product_of_list,
        powers=powers,
        value_and_argmax=value_and_argmax,
    )
