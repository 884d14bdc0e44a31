"""Checks of what the functions and solvers of this room take and return."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import (
    CallError,
    DtypeError,
    NotTensorError,
    StructureError,
    location,
)


class _Missing:
    def __repr__(self) -> str:
        return "<none>"


MISSING: Any = _Missing()

# The solvers that warn by themselves if they don't converge (solvers.py).
WARNING_SOLVERS: set[Any] = set()


def warns_itself(solver: Any) -> bool:
    while isinstance(solver, functools.partial):
        solver = solver.func
    return solver in WARNING_SOLVERS


def refuse_with_decorator(api: str, **arguments: Any) -> None:
    """Raises CallError if an argument is given that a decorator does not take."""
    for name, value in arguments.items():
        if value is not None:
            raise CallError(
                f"torchlayers: {api}: {name} is given, but not what it is called with. As a "
                "decorator, it takes the solver that it decorates; as a call, it needs the second "
                "argument."
            )


class Unknowns(pytree.TensorLeaves):
    """A pytree of floating-point or complex tensors that a solver solves for.

    Args:
        api: the public function's name in error messages.
        name: the pytree's name there.
        tree: the pytree.
    """

    def __init__(self, api: str, name: str, tree: Any) -> None:
        super().__init__(tree)
        self.api = api
        self.name = name
        for i, leaf in enumerate(pytree.leaves(tree)):
            if not isinstance(leaf, Tensor):
                raise NotTensorError(
                    f"torchlayers: {api}: {self._leaf(i, tree)} must be a tensor, got "
                    f"{type(leaf).__name__}."
                )
            if not (leaf.is_floating_point() or leaf.is_complex()):
                raise DtypeError(
                    f"torchlayers: {api}: {self._leaf(i, tree)} must be a floating-point or "
                    f"complex tensor, got {leaf.dtype}."
                )
        if not self.tensors:
            raise NotTensorError(f"torchlayers: {api}: {name} has no tensors.")

    def _leaf(self, i: int, tree: Any) -> str:
        path = pytree.leaves_by_path(tree)[i][0]
        return f"{self.name}{path}"

    def leaves_of(self, what: str, result: Any) -> list[Tensor]:
        """Returns the leaves of what a function returned.

        Raises:
            StructureError: the structure, a shape, dtype or device is not that of the unknowns.
        """
        leaves, spec = pytree.flatten(result)
        must = f"torchlayers: {self.api}: {what} must return a pytree like {self.name}"
        if spec != self.spec:
            raise StructureError(
                f"{must}, {pytree.describe(self.spec)}, but returned {pytree.describe(spec)} (* is "
                f"a leaf).{location()}"
            )
        for i, (leaf, x) in enumerate(zip(leaves, self.tensors, strict=True)):
            if not isinstance(leaf, Tensor):
                raise StructureError(
                    f"{must}, but returned {type(leaf).__name__} for {self._leaf(i, result)}."
                    f"{location()}"
                )
            if (leaf.shape, leaf.dtype, leaf.device) != (x.shape, x.dtype, x.device):
                raise StructureError(
                    f"{must}, but for {self._leaf(i, result)}, of shape {tuple(x.shape)}, "
                    f"{x.dtype}, {x.device}, returned shape {tuple(leaf.shape)}, {leaf.dtype}, "
                    f"{leaf.device}.{location()}"
                )
        return leaves

    def solver(self, name: str, solve: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
        """Returns a linear solver of lists of tensors: solve(matvec, b) -> (solution, aux)."""

        def solve_leaves(matvec: Callable[..., Any], b: list[Tensor]) -> tuple[list[Tensor], Any]:
            def on_tree(v: Any) -> Any:
                return self.put_in(matvec(self.leaves_of(f"{name}: the function's argument", v)))

            return self.solved(name, solve(on_tree, self.put_in(b)), has_aux)

        return solve_leaves

    def solved(self, name: str, result: Any, has_aux: bool) -> tuple[list[Tensor], Any]:
        """Splits what a solver returned into the leaves of the solution, and aux."""
        x, aux = pytree.split_aux(f"{self.api}: {name}", result) if has_aux else (result, None)
        return self.leaves_of(name, x), aux
