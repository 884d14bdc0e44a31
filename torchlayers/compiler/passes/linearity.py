"""Which arguments operators are linear in while the other arguments are constant."""

from torch.fx import Node

from torchlayers.compiler.passes.merge_views import PERMUTES, RESHAPES
from torchlayers.core.operators import aten

# Backward operators of activations: linear in the first argument; the others give the slope.
WITH_SLOPES = {
    aten.elu_backward.default, aten.gelu_backward.default, aten.hardtanh_backward.default,
    aten.leaky_relu_backward.default, aten.sigmoid_backward.default, aten.silu_backward.default,
    aten.softplus_backward.default, aten.tanh_backward.default, aten.threshold_backward.default,
}  # fmt: skip
# Elementwise, and linear in the first argument; mul.Tensor in both.
ELEMENTWISE = {
    aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.neg.default,
    *WITH_SLOPES,
}  # fmt: skip
PRODUCTS = {aten.mm.default, aten.bmm.default, aten.mv.default}
SUMS = {aten.sum.default, aten.sum.dim_IntList}
REARRANGED = {*RESHAPES, *PERMUTES, aten.expand.default}
_BILINEAR = {aten.mul.Tensor, *PRODUCTS}
_LINEAR = {*ELEMENTWISE, *PRODUCTS, *SUMS, *REARRANGED}


def linear_in(node: Node) -> tuple[int, ...]:
    """Returns the positions of the arguments that the node is linear in, each separately."""
    if node.target not in _LINEAR:
        return ()
    return (0, 1) if node.target in _BILINEAR else (0,)
