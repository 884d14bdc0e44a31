"""Makes the fake tensors with which a function is captured."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.torch_private import FakeTensor, FakeTensorMode, dispatch_modes

if TYPE_CHECKING:  # it imports sympy, which takes twice as long as the rest of the package
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


def fake_like(mode: FakeTensorMode, like: Tensor) -> FakeTensor:
    """Returns a fake tensor like another, which shares memory with no other tensor."""
    with mode, torch.no_grad():
        if like.layout is not torch.strided or like.is_quantized:
            fake: Any = like if isinstance(like, FakeTensor) else mode.from_tensor(like.detach())
        else:
            size, stride, dtype, device = like.shape, like.stride(), like.dtype, like.device
            # Below layers that are active: a grad would wrap it.
            fake = _C.at_level(
                0, lambda: torch.empty_strided(size, stride, dtype=dtype, device=device)
            )
    assert isinstance(fake, FakeTensor)
    return fake


def symbolic_shapes() -> "ShapeEnv":
    """Returns a shape environment that, as without symbols, rejects data-dependent shapes."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)


def symbolic_like(mode: FakeTensorMode, like: Tensor, symbolic: set[int]) -> FakeTensor:
    """Like fake_like, with symbols for some sizes, and for the strides that depend on them."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    kinds = [
        DimDynamic.DYNAMIC if dim in symbolic else DimDynamic.STATIC for dim in range(like.dim())
    ]
    with torch.no_grad(), dispatch_modes._disable_current_modes():
        real = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
        context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
        return mode.from_tensor(real, symbolic_context=context)
