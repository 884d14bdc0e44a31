"""Per-sample gradient norms, and sums of clipped gradients, without per-sample gradients.

Both have the results of ``vmap(grad(func))``, which runs here too (`sample.py`), except for
weights that the function multiplies by: there the operator gets the weight's value, detached, and
its input and the cotangent of its output are saved (`weight_uses.py`). From these two follow the
weight's gradient for the sample (`uses.py`, `convolution.py`), and its norm without the gradient
(`squared_norms.py`). All other gradients are computed by vmap(grad), and dropped as soon as their
norms are known (`weight.py`).

If an operator multiplies by a weight, the weight's gradient is a matrix product too,
left.mT @ right, of the operator's input and the cotangent of its output (T x p and T x q, where T
is the number of positions). Its squared norm is the sum of (left @ left.mT) * (right @ right.mT),
which are T x T matrices, so the p x q gradient is never materialized. A convolution multiplies
patches by its weight, and an embedding one-hot rows. All of this is written for one sample; vmap
batches it.

Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015); Li, Tramer, Liang and
    Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (2022),
    section 4; the choice by sizes as in Bu, Mao and Xu, "Scalable and Efficient Training of Large
    Convolutional Neural Networks with Differential Privacy" (2022), section 4.
"""

from torchlayers.transforms.per_sample.api import clipped_grad as clipped_grad
from torchlayers.transforms.per_sample.api import per_sample_norms as per_sample_norms
