"""Registers the rules of the layer; the last one is for every other operator."""

from torchlayers.core.operators import aten
from torchlayers.transforms.laplacian import elementwise, general, linear, products, reductions
from torchlayers.transforms.laplacian.layer import ForwardLaplacian

rule = ForwardLaplacian.rule

rule(aten.addcmul, aten.glu)(general.decomposed)
rule(aten.linear)(linear.affine_map)
rule(*linear.KEEP_ORDER)(linear.keep_order)
rule(aten.t, aten.transpose.int, aten.permute)(linear.transpose)
rule(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim)(linear.total)
rule(aten.expand)(linear.expand)
rule(aten.add.Tensor)(linear.add)
rule(aten.sub.Tensor)(linear.sub)
rule(aten.rsub.Tensor)(linear.rsub)

rule(aten.mul.Tensor)(products.mul)
rule(aten.div.Tensor, aten.div.Tensor_mode)(products.div)
rule(aten.mm, aten.bmm, aten.mv, aten.dot)(products.mm)
rule(aten.addmm)(products.addmm)
rule(aten.addmv)(products.addmv)
rule(aten.baddbmm)(products.baddbmm)
rule(aten.addr)(products.addr)
rule(aten._embedding_bag)(products.embedding_bag)
rule(aten.convolution)(products.convolution)

rule(aten._softmax)(reductions.softmax)
rule(aten._log_softmax)(reductions.log_softmax)
rule(aten.logsumexp)(reductions.logsumexp)
rule(aten.linalg_vector_norm)(reductions.norm)
rule(aten._linalg_slogdet)(reductions.slogdet)
rule(aten.linalg_inv_ex)(reductions.inverse)

# By jvp, which gives the rows the memory layout that these depend on.
rule(aten.as_strided, aten.as_strided_scatter, aten.view_as_complex)(general.first_order)
# With dense rows, which those of either choice can be brought to: loops and branches need it.
rule(aten.where)(general.first_order)
rule(aten.detach)(general.constant)
rule("constant")(general.constant)
rule("riccati")(elementwise.through_result)
rule(aten.sigmoid_backward, aten.tanh_backward)(elementwise.times_slope)
rule("elementwise")(elementwise.elementwise)
rule("linear")(linear.linear)
rule("piecewise linear")(general.first_order)
rule("any")(general.without_rule)
