"""The input tensors of programs: their values and memory layouts."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

# Ways to change a tensor's layout without changing its values, except that expand repeats them.
LAYOUTS = {
    "contiguous": "{t}",
    "transposed": "{t}.transpose(0, -1).contiguous().transpose(0, -1)",
    "strided": "{t}.repeat_interleave(2, -1)[..., ::2]",
    "offset": "torch.stack(({t}, {t}))[1]",
    "expanded": "{t}[..., :1].expand({shape})",
    "expanded in front": "{t}[:1].expand({shape})",
    "negative": "torch.complex({t}, -{t}).conj().imag",
    "conjugate": "{t}.conj_physical().conj()",
    "channels last": "{t}.contiguous(memory_format=torch.channels_last)",
}

SPECIAL = "nan, inf, -inf, 0.0, -0.0, {tiny}, -{tiny}, 1.0, 1.0, -2.5, 0.5"


def layouts(shape: tuple[int, ...], dtype: str) -> list[str]:
    """The layouts that a tensor of this shape and dtype can have."""
    names = ["contiguous", "offset"]
    if shape:
        names += ["transposed", "strided", "expanded", "expanded in front"]
    if len(shape) == 4:
        names += ["channels last"]
    if dtype in ("float32", "float64"):
        names += ["negative"]
    if dtype.startswith("complex"):
        names += ["conjugate"]
    return names


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor of distinct values between -1 and 1, or of values from SPECIAL."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    layout: str = "contiguous"
    start: int = 0
    special: bool = False

    def lines(self, name: str) -> Iterator[str]:
        """The source that creates it."""
        size = math.prod(self.shape)
        if self.special:
            tiny = 1e-310 if self.dtype == "float64" else 1e-40
            values = f"torch.tensor([{SPECIAL.format(tiny=tiny)}], dtype=torch.float64)"
            values += f".roll({self.start}).repeat({size // 11 + 1})[:{size}]"
        else:
            values = f"torch.arange({self.start}, {self.start + size}, dtype=torch.float64)"
            values = f"({values} * 0.618034) % 1 * 2 - 1"
        yield f"{name} = ({values}).reshape({self.shape})"
        if self.dtype == "int64":
            yield f"{name} = (4 * {name}).to(torch.int64)"
        elif self.dtype == "bool":
            yield f"{name} = {name} > 0"
        elif self.dtype.startswith("complex"):
            yield f"{name} = torch.complex({name}, 0.3 - {name} / 2).to(torch.{self.dtype})"
        elif self.dtype != "float64":
            yield f"{name} = {name}.to(torch.{self.dtype})"
        if self.layout != "contiguous":
            yield f"{name} = {LAYOUTS[self.layout].format(t=name, shape=self.shape)}"

    def tensor(self) -> Tensor:
        names = {"torch": torch, "nan": math.nan, "inf": math.inf}
        exec("\n".join(self.lines("value")), names)
        value: Tensor = names["value"]
        return value


# Added to a tensor whose elements need an order that no rounding error changes.
APART = torch.tensor([0.0, 6.0, 3.0, 15.0, 9.0, 12.0], dtype=torch.float64)

# Sparse matrices by their size and layout, as source.
SPARSE = """
_PLACES = torch.arange(4)
_SQUARE = (_PLACES[:, None] * 3 + _PLACES * 5 + 1) % 4 % 3 * torch.tensor(0.5, dtype=torch.float64)
COO = [_SQUARE[:n, :n].to_sparse() for n in range(5)]
CSR = [_SQUARE[:n, :n].to_sparse_csr() for n in range(5)]
"""


@functools.cache
def sparse() -> dict[str, list[Tensor]]:
    """The matrices of SPARSE."""
    names = {"torch": torch}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a layout that is in beta
        exec(SPARSE, names)
    return {"COO": names["COO"], "CSR": names["CSR"]}  # type: ignore[dict-item]
