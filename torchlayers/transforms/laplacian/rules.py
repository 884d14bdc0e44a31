"""Registers the rules of the layer; the last one is for every other operator."""

from typing import Any

import torch

from torchlayers.transforms.laplacian import elementwise, general, linear, products, reductions
from torchlayers.transforms.laplacian.layer import ForwardLaplacian

_aten: Any = torch.ops.aten
rule = ForwardLaplacian.rule

for _op, _derivatives in elementwise.ANALYTIC.items():
    rule(_op)(elementwise.rule_of(_derivatives))
for _op, _derivatives in elementwise.REAL.items():
    rule(_op)(elementwise.rule_of(_derivatives, is_analytic=False))
rule(_aten.tanh)(elementwise.tanh)
rule(_aten.sigmoid)(elementwise.sigmoid)
rule(_aten.tanh_backward)(elementwise.tanh_backward)
rule(_aten.sigmoid_backward)(elementwise.sigmoid_backward)
rule(_aten.log_sigmoid_forward)(elementwise.log_sigmoid)

rule(*general.FIRST_ORDER)(general.first_order)
rule(_aten.glu)(general.decomposed)
rule(_aten.linear)(linear.affine_map)
rule(*linear.KEEP_ORDER)(linear.keep_order)
rule(_aten.t, _aten.transpose.int, _aten.permute)(linear.transpose)
rule(_aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim)(linear.total)
rule(_aten.add.Tensor)(linear.add)
rule(_aten.sub.Tensor)(linear.sub)
rule(_aten.rsub.Tensor)(linear.rsub)
rule(_aten.expand)(linear.expand)

rule(_aten.mul.Tensor)(products.mul)
rule(_aten.div.Tensor, _aten.div.Tensor_mode)(products.div)
rule(_aten.mm, _aten.bmm, _aten.mv, _aten.dot)(products.mm)
rule(_aten.addmm)(products.addmm)
rule(_aten.addmv)(products.addmv)
rule(_aten.baddbmm)(products.baddbmm)
rule(_aten.addr)(products.addr)
rule(_aten.addcmul)(products.addcmul)
rule(_aten._embedding_bag, _aten._embedding_bag_forward_only)(products.embedding_bag)
rule(_aten.convolution)(products.convolution)

rule(_aten._softmax)(reductions.softmax)
rule(_aten._log_softmax)(reductions.log_softmax)
rule(_aten.logsumexp)(reductions.logsumexp)
rule(_aten.linalg_vector_norm)(reductions.norm)
rule(_aten._linalg_slogdet)(reductions.slogdet)
rule(_aten.linalg_inv_ex)(reductions.inverse)

rule(_aten.detach)(general.constant)
rule("constant")(general.constant)
rule("linear")(linear.linear)
rule("any")(general.without_rule)
