"""Sample calls for operators with rules that op_db's samples do not reach."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

A = torch.ops.aten
IDS = torch.tensor([[0, 2], [1, 0]])

Sample = tuple[Callable[..., Any], list[Tensor]]


def values(*sizes: int) -> Tensor:
    """Values away from integers, where step functions jump, and from zero."""
    generator = torch.Generator().manual_seed(3)
    whole = torch.randint(-2, 2, sizes, generator=generator)
    return whole + 0.2 + 0.6 * torch.rand(sizes, generator=generator, dtype=torch.float64)


def unit(*sizes: int) -> Tensor:
    """Values between 0 and 1."""
    return values(*sizes) % 1


X, Y = values(2, 3), values(3, 2).t()
IMAGE, VOLUME = values(1, 2, 4, 4), values(1, 2, 2, 3, 4)
UPSAMPLED = {
    "upsample_linear1d": ([6], [1, 2, 3], (False,), 1),
    "upsample_nearest1d": ([6], [1, 2, 3], (), 1),
    "_upsample_nearest_exact1d": ([6], [1, 2, 3], (), 1),
    "upsample_bilinear2d": ([6, 5], [1, 2, 3, 4], (False,), 2),
    "upsample_bicubic2d": ([6, 5], [1, 2, 3, 4], (False,), 2),
    "_upsample_bilinear2d_aa": ([6, 5], [1, 2, 3, 4], (False,), 2),
    "_upsample_bicubic2d_aa": ([6, 5], [1, 2, 3, 4], (False,), 2),
    "upsample_nearest2d": ([6, 5], [1, 2, 3, 4], (), 2),
    "_upsample_nearest_exact2d": ([6, 5], [1, 2, 3, 4], (), 2),
    "upsample_trilinear3d": ([4, 5, 6], [1, 2, 2, 3, 4], (False,), 3),
    "upsample_nearest3d": ([4, 5, 6], [1, 2, 2, 3, 4], (), 3),
    "_upsample_nearest_exact3d": ([4, 5, 6], [1, 2, 2, 3, 4], (), 3),
}


def upsampled_back(name: str) -> Sample:
    size, image, options, _ = UPSAMPLED[name]
    backward = getattr(A, f"{name}_backward")
    return lambda g: backward(g, size, image, *options), [values(*image[:2], *size)]


def constant(op: Callable[..., Any], *arguments: Any) -> Sample:
    """A step function of X, whose tangent is zero; booleans are converted to numbers."""
    return lambda x: op(x, *arguments).double(), [X]


# Indices of the elements of a sparse 2 by 3 matrix.
PLACES = torch.tensor([[0, 0, 1], [0, 2, 1]])
# The operator: inside a transform, torch.sparse_coo_tensor makes no sparse tensor.
COO_TENSOR = A.sparse_coo_tensor.indices_size


def coo(v: Tensor) -> Tensor:
    return COO_TENSOR(PLACES, v, (2, 3))


def csr(v: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(torch.tensor([0, 2, 3]), PLACES[1], v, (2, 3))


SPARSE: dict[str, Sample] = {
    "_coalesce": (
        lambda v: COO_TENSOR(PLACES[:, [0, 1, 1]], v, (2, 3)).coalesce().to_dense(),
        [values(3)],
    ),
    "_sparse_addmm": (
        lambda x, v, y: torch.sparse.addmm(x, coo(v), y, beta=2, alpha=0.5),
        [values(2, 2), values(3), values(3, 2)],
    ),
    "_sparse_coo_tensor_with_dims_and_tensors": (lambda v: coo(v).to_dense(), [values(3)]),
    "_sparse_sparse_matmul": (
        lambda v, w: torch.sparse.mm(coo(v), coo(w).t()).to_dense(),
        [values(3), unit(3)],
    ),
    "_sparse_sum.dim": (lambda v: torch.sparse.sum(coo(v), 0).to_dense(), [values(3)]),
    "_to_dense": (lambda v: coo(v).to_dense(), [values(3)]),
    "_to_sparse": (lambda x: x.to_sparse().to_dense(), [X]),
    "_to_sparse.sparse_dim": (lambda x: x.to_sparse(1).to_dense(), [X]),
    "_to_sparse_bsc": (lambda x: x.to_sparse_bsc((1, 1)).to_dense(), [X]),
    "_to_sparse_bsr": (lambda x: x.to_sparse_bsr((1, 1)).to_dense(), [X]),
    "_to_sparse_csc": (lambda x: x.to_sparse_csc().to_dense(), [X]),
    "_to_sparse_csr": (lambda x: x.to_sparse_csr().to_dense(), [X]),
    "_values": (lambda v: coo(v)._values(), [values(3)]),
    "sparse_compressed_tensor.comp_plain_value_size": (
        lambda v: csr(v).to_dense(),
        [values(3)],
    ),
    "sparse_mask": (lambda x: x.sparse_mask(coo(values(3)).coalesce()).to_dense(), [X]),
    "sparse_sampled_addmm": (
        lambda v, x, y: torch.sparse.sampled_addmm(csr(v), x, y, beta=2, alpha=0.5).to_dense(),
        [values(3), values(2, 2), values(2, 3)],
    ),
    "values": (lambda v: csr(v).values(), [values(3)]),
}

SAMPLES: dict[str, Sample] = {
    "_conj_physical": (
        lambda x: torch.view_as_real(A._conj_physical(torch.view_as_complex(x))),
        [values(3, 2)],
    ),
    "_standard_gamma_grad": (
        lambda shape, number: A._standard_gamma_grad(shape.abs() + 1, number.abs() / 20 + 0.1),
        [X, Y],
    ),
    "_cdist_backward": (
        lambda g, x, y: A._cdist_backward(g, x, y, 1.5, torch.cdist(x, y, 1.5)),
        [values(2, 3), values(2, 4), values(3, 4) + 0.1],
    ),
    "_pdist_backward": (
        lambda g, x: A._pdist_backward(g, x, 3.0, A._pdist_forward(x, 3.0)),
        [values(3), values(3, 2)],
    ),
    "_prelu_kernel_backward": (
        lambda g, x, w: sum(A._prelu_kernel_backward(g, x, w)),
        [values(2, 3), X, values(2, 3)],
    ),
    "_convolution": (
        lambda x, w, b: A._convolution(
            *(x, w, b, [1], [0], [1], False, [0], 1, False, False, False, False)
        ),
        [values(1, 2, 4), values(3, 2, 2), values(3)],
    ),
    "_reshape_alias": (lambda x: A._reshape_alias(x * 1, [6], [1]), [X]),
    "_reshape_copy": (lambda x: A._reshape_copy(x, [3, 2]), [X]),
    "_unsafe_index.Tensor": (lambda x: A._unsafe_index(x, [IDS[0] % 2]), [X]),
    "_unsafe_index_put": (
        lambda x, v: A._unsafe_index_put(x, [IDS[1]], v, True),
        [X, values(2, 3)],
    ),
    "_upsample_bicubic2d_aa": (
        lambda x: A._upsample_bicubic2d_aa(x, [6, 5], False),
        [IMAGE],
    ),
    "affine_grid_generator": (
        lambda theta: A.affine_grid_generator(theta, [1, 2, 3, 4], False),
        [values(1, 2, 3)],
    ),
    "all": constant(A.all),
    "all.dim": constant(A.all.dim, 0),
    "any": constant(A.any),
    "any.dim": constant(A.any.dim, 0),
    "argmax": constant(A.argmax),
    "argmin": constant(A.argmin, 1),
    "binary_cross_entropy_with_logits": (
        lambda x, y, w, p: A.binary_cross_entropy_with_logits(x, y, w, p, 1),
        [X, unit(2, 3), unit(3), unit(3)],
    ),
    "bucketize.Tensor": constant(A.bucketize.Tensor, torch.tensor([-1.0, 1.0]).double()),
    "cholesky_inverse": (
        lambda x: A.cholesky_inverse(x.tril() + 3 * torch.eye(3)),
        [values(3, 3)],
    ),
    "clamp_max": (lambda x: A.clamp_max(x, 0.1), [X]),
    "col2im": (lambda x: A.col2im(x, [4, 4], [2, 2], [1, 1], [0, 0], [2, 2]), [values(1, 8, 4)]),
    "copy": (lambda x, y: A.copy(x, y), [X, values(3)]),
    "count_nonzero": constant(A.count_nonzero),
    "div.Scalar_mode": (lambda x: A.div.Scalar_mode(x, 0.7, rounding_mode=None), [X]),
    "embedding_dense_backward": (
        lambda g: A.embedding_dense_backward(g, IDS, 4, -1, True),
        [values(2, 2, 3)],
    ),
    "fill.Tensor": (lambda x, v: A.fill(x, v), [X, values()]),
    "floor_divide": (lambda x, y: A.floor_divide(x, y), [X, Y * 3 + 0.1]),
    "floor_divide.Scalar": constant(A.floor_divide.Scalar, 3),
    "fmod.Scalar": (lambda x: A.fmod(x, 0.9), [X]),
    "grid_sampler_2d_backward": (
        lambda g, x, grid: A.grid_sampler_2d_backward(g, x, grid, 2, 2, True, [True, True]),
        [values(1, 2, 2, 3), IMAGE, unit(1, 2, 3, 2) * 2.4 - 1.2],
    ),
    "grid_sampler_3d_backward": (
        lambda g, x, grid: A.grid_sampler_3d_backward(g, x, grid, 0, 0, False, [True, True]),
        [values(1, 2, 1, 2, 3), VOLUME, unit(1, 1, 2, 3, 3) * 2.4 - 1.2],
    ),
    "heaviside": (
        lambda x, v: A.heaviside(torch.cat([x, torch.zeros(1, 3)]), v),
        [X, values(3)],
    ),
    "igamma": (lambda x: A.igamma(unit(3) + 1, x), [unit(2, 3)]),
    "igammac": (lambda x: A.igammac(unit(3) + 1, x), [unit(2, 3)]),
    "isinf": constant(A.isinf),
    "isneginf": constant(A.isneginf),
    "isposinf": constant(A.isposinf),
    "linear": (A.linear, [X, values(4, 3), values(4)]),
    "logical_and": constant(A.logical_and, Y),
    "logical_not": constant(A.logical_not),
    "logical_or": constant(A.logical_or, Y),
    "logical_xor": constant(A.logical_xor, Y),
    "logit_backward": (lambda g, x: A.logit_backward(g, x, 0.25), [X, unit(2, 3)]),
    "mish_backward": (A.mish_backward, [X, Y]),
    "new_empty_strided": constant(
        lambda x: A.new_empty_strided(x, [2], [1]) * 0,  # uninitialized memory can't be compared
    ),
    "nonzero": constant(A.nonzero),
    "norm.Scalar": (lambda x: A.norm.Scalar(x, 3), [X]),
    "norm.ScalarOpt_dim_dtype": (
        lambda x: A.norm.ScalarOpt_dim_dtype(x, 3, [1], True, dtype=torch.float64),
        [X],
    ),
    "norm.ScalarOpt_dtype": (
        lambda x: A.norm.ScalarOpt_dtype(x, 3, dtype=torch.float64),
        [X],
    ),
    "remainder.Scalar": (lambda x: A.remainder(x, 0.9), [X]),
    "remainder.Scalar_Tensor": (lambda x: A.remainder.Scalar_Tensor(4.1, x), [X]),
    "scatter.value": (lambda x: A.scatter.value(x, 1, IDS, 0.3), [X]),
    "searchsorted.Tensor": (
        lambda edges, x: A.searchsorted(edges, x).double(),
        [torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), X],
    ),
    "signbit": constant(A.signbit),
    "select_backward": (lambda g: A.select_backward(g, [2, 3], 1, -1), [values(2)]),
    "silu_backward": (A.silu_backward, [X, Y]),
    "special_zeta": (lambda q: A.special_zeta(unit(3) + 1.5, q), [unit(2, 3) + 1]),
    "special_zeta.self_scalar": (lambda q: A.special_zeta(2.5, q), [unit(2, 3) + 1]),
    "unfold_backward": (lambda g: A.unfold_backward(g, [5], 0, 2, 1), [values(4, 2)]),
    "unsafe_split_with_sizes": (lambda x: A.unsafe_split_with_sizes(x, [1, 2], 1), [X]),
    "zero": (A.zero, [X]),
    "bernoulli.p": (lambda x: A.bernoulli.p(x, 1.0), [X]),
    "normal_functional": (lambda x: A.normal_functional(x, 2.0, 0.0), [X]),
    "copysign.Scalar": (lambda x: A.copysign(x, -1.0), [X]),
    "detach_copy": constant(lambda x: A.detach_copy(0 * x)),  # detach_copy(x) loses it
    "diagonal_backward": (lambda g: A.diagonal_backward(g, [2, 3], 0, 0, 1), [values(2)]),
    "full_like": (lambda x: A.full_like(x, 2.0), [X]),
    "linspace.Scalar_Tensor": (lambda y: A.linspace(0.5, y, 4, dtype=y.dtype), [values(1)[0]]),
    "linspace.Tensor_Scalar": (lambda x: A.linspace(x, 0.5, 4, dtype=x.dtype), [values(1)[0]]),
    "linspace.Tensor_Tensor": (
        lambda x, y: A.linspace(x, y, 4, dtype=x.dtype),
        [values(1)[0], values(2)[1]],
    ),
    "lerp.Tensor": (A.lerp.Tensor, [X, Y, values(3)]),
    "nll_loss2d_backward": (
        lambda g, x: A.nll_loss2d_backward(g, x, IDS[None], None, 1, -100, g.new_tensor(4)),
        [values(), values(1, 3, 2, 2)],
    ),
    "reflection_pad2d": (lambda x: A.reflection_pad2d(x, [1, 2, 0, 1]), [IMAGE]),
    "reflection_pad3d": (lambda x: A.reflection_pad3d(x, [1, 0, 0, 1, 1, 0]), [VOLUME]),
    "replication_pad3d": (lambda x: A.replication_pad3d(x, [1, 0, 0, 1, 1, 0]), [VOLUME]),
    "reflection_pad2d_backward": (
        lambda g, x: A.reflection_pad2d_backward(g, x, [1, 2, 0, 1]),
        [values(1, 2, 5, 7), IMAGE],
    ),
    "reflection_pad3d_backward": (
        lambda g, x: A.reflection_pad3d_backward(g, x, [1, 0, 0, 1, 1, 0]),
        [values(1, 2, 3, 4, 5), VOLUME],
    ),
    "replication_pad3d_backward": (
        lambda g, x: A.replication_pad3d_backward(g, x, [1, 0, 0, 1, 1, 0]),
        [values(1, 2, 3, 4, 5), VOLUME],
    ),
    "upsample_nearest2d": (lambda x: A.upsample_nearest2d(x, [6, 5]), [IMAGE]),
    "upsample_nearest3d": (lambda x: A.upsample_nearest3d(x, [4, 5, 6]), [VOLUME]),
    "_upsample_nearest_exact2d": (lambda x: A._upsample_nearest_exact2d(x, [6, 5]), [IMAGE]),
    "_upsample_nearest_exact3d": (lambda x: A._upsample_nearest_exact3d(x, [4, 5, 6]), [VOLUME]),
    **SPARSE,
} | {f"{name}_backward": upsampled_back(name) for name in UPSAMPLED}
