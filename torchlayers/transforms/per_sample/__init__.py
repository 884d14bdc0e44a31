"""Norms of each sample's gradient, and sums of clipped gradients, without any sample's gradient.

Both are what ``vmap(grad(func))`` would give, which runs here too (`sample.py`), but for the
weights of products: where the function multiplies by one, it gets the weight's value, which is not
differentiated, and what goes in and what cotangent comes back is noted (`weight_uses.py`). The two
tell the weight's gradient for the sample (`uses.py`, `convolution.py`), and its norm without it
(`squared_norms.py`). A gradient of any other kind, which vmap(grad) makes, is dropped as soon as
its norm is known (`weight.py`).

Where an operator multiplies by a weight, the weight's gradient is a product too, left.mT @ right,
of what goes in and the cotangents that come back (T x p and T x q, T the positions). Its squared
norm is the sum of (left @ left.mT) * (right @ right.mT), of T x T, for which the gradient, p x q
numbers, is never made. A convolution multiplies patches by its weight, and an embedding rows that
have a single one. All of this is written for one sample; vmap makes it a batch's.

Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015); Li, Tramer, Liang and
    Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (2022),
    section 4; the choice by sizes as in Bu, Mao and Xu, "Scalable and Efficient Training of Large
    Convolutional Neural Networks with Differential Privacy" (2022), section 4.
"""

from torchlayers.transforms.per_sample.api import clipped_grad as clipped_grad
from torchlayers.transforms.per_sample.api import per_sample_norms as per_sample_norms
