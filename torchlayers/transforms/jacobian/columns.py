"""The jvps of a function at one point, which are columns of its Jacobian."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchlayers.core import pytree
from torchlayers.transforms.jacobian.basis import refuse_complex
from torchlayers.transforms.jvp import JvpSpec


class Columns:
    """Takes jvps under a vmap over tangents, and keeps what all of them share.

    Attributes:
        spec: the structure of the output.
    """

    spec: pytree.TreeSpec

    def __init__(self, api: str, spec: JvpSpec) -> None:
        self._api = api
        self._spec = spec
        self._aux: list[Any] = []
        self._aux_spec: Any = None

    def push(
        self, inputs: tuple[Any, ...], tangents: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """Returns the leaves of the output's tangent, then the tensors of aux."""
        output, output_tangents, aux = self._spec.push(inputs, tangents, are_leaves=True)
        refuse_complex(self._api, "output", output)
        leaves, self.spec = pytree.flatten(output_tangents)
        # aux is the same for every column, and may hold things other than tensors.
        if self._spec.has_aux:
            self._aux, self._aux_spec = pytree.flatten(aux)
        return *leaves, *(leaf for leaf in self._aux if isinstance(leaf, Tensor))

    def leaves_of(self, pushed: Sequence[Tensor]) -> list[Tensor]:
        """The leaves of several columns, from what vmap made of push's results."""
        count = self.spec.num_leaves
        values = iter(leaf[0] for leaf in pushed[count:])
        self._aux = [next(values) if isinstance(leaf, Tensor) else leaf for leaf in self._aux]
        return list(pushed[:count])

    def aux(self) -> Any:
        return pytree.unflatten(self._aux, self._aux_spec)
