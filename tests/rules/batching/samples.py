"""Sample calls for every operator with a batching rule, each on the tensors of a single sample."""

import string
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

A = torch.ops.aten

Sample = tuple[Callable[..., Any], list[Tensor]]


def values(*sizes: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(sizes) + len(sizes))
    return torch.rand(sizes, generator=generator, dtype=torch.float64) + 0.1


V, W = values(3), values(3) + 1
X, Y = values(2, 3), values(2, 3) + 1
SQUARE, CUBE = values(3, 3) + 3 * torch.eye(3), values(2, 3, 4)
CUBES = values(2, 3, 3) + 3 * torch.eye(3)
PIVOTED = CUBES.flip(1)
IMAGE, IMAGES = values(2, 5, 5), values(2, 2, 5, 5)
PLACES, ROWS = torch.tensor([2, 0]), torch.tensor([[0, 1, 1], [1, 0, 1]])
MASK = torch.tensor([[True, False, True], [False, True, True]])
CLASS, CLASSES = torch.tensor(1), torch.tensor([2, 0])
CONV = ([2, 1], [1, 0], [1, 1])
HEADS = values(2, 3, 4, 5)
MEAN, SUM, NONE = 1, 2, 0
_attention = torch.nn.functional.scaled_dot_product_attention


def _dual(x: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
    with forward_ad.dual_level():
        y = forward_ad.make_dual(x, tangent)
        primal, of_square = forward_ad.unpack_dual(y * y)
        return primal, of_square


def _of_ones(rank: int) -> Tensor:
    """A tensor of this rank; its dimensions after the first two, which fit CUBE's, are of size
    1."""
    return values(3, 4, *[1] * (rank - 2))


def _attention_backward(*tensors: Tensor) -> tuple[Tensor, ...]:
    g, *qkv = (in_order(tensor.detach()) for tensor in tensors)  # torch has no second derivative
    found = A._scaled_dot_product_flash_attention_for_cpu(*qkv, 0.0, True)
    backward = A._scaled_dot_product_flash_attention_for_cpu_backward
    return tuple(backward(g, *qkv, *found, 0.0, True))


def _places(x: Tensor) -> Tensor:
    """Two indices per sample, different for each sample."""
    return (torch.stack([x.sum(), x.sum() + 1]) * 10).long() % 2


def in_order(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _packed(x: Tensor) -> Tensor:
    packed: Tensor = A._pack_padded_sequence(x, torch.tensor([3, 2]), False)[0]
    return packed


def _convolution_backward(g: Tensor, x: Tensor, w: Tensor) -> Any:
    return A.convolution_backward(
        g, x, w, [2], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3
    )


def _layer_norm_backward(g: Tensor, x: Tensor, w: Tensor, which: list[bool]) -> Any:
    _, mean, rstd = A.native_layer_norm(x, [3], w, w, 1e-5)
    return [
        result
        for result in A.native_layer_norm_backward(g, x, [3], mean, rstd, w, w, which)
        if result is not None
    ]


def _group_norm_backward(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """As under autocast: of half precision, with a weight of single precision."""
    g, x, w = (in_order(each.detach()) for each in (g.bfloat16(), x.bfloat16(), w.float()))
    _, mean, rstd = A.native_group_norm(x, w, None, 2, 4, 3, 2, 1e-5)
    return A.native_group_norm_backward(g, x, mean, rstd, w, 2, 4, 3, 2, [True] * 3)


def _batch_norm_backward(g: Tensor, x: Tensor, w: Tensor) -> Any:
    g, x, w = g.detach().bfloat16(), x.detach().bfloat16(), w.detach().float()
    _, mean, rstd = torch.native_batch_norm(x, w, w, None, None, True, 0, 1e-5)
    options = (True, 1e-5, [True] * 3)
    return A.native_batch_norm_backward(g, x, w, None, None, mean, rstd, *options)


def _distances_backward(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = A._cdist_backward(g, x, y, 1.5, torch.cdist(x, y, 1.5))
    return found


def _lu_solve(**options: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def solve(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, **options)

    return solve


def _lu_unpack(*flags: bool) -> Callable[[Tensor], Any]:
    """Outputs that are not requested are empty and have no batch dimension."""

    def unpack(a: Tensor) -> list[Tensor]:
        factors = A.lu_unpack(*torch.linalg.lu_factor(a), *flags)
        return [factor for factor in factors if factor.numel()]

    return unpack


def _resized_backward(name: str) -> Callable[[Tensor], Any]:
    corners = [] if "nearest" in name else [False]
    return lambda g: getattr(A, name)(g, [6, 8], [2, 2, 3, 4], *corners)


def _strided(view: Callable[..., Tensor]) -> list[Sample]:
    """Calls of as_strided by strides that are a sample's own."""
    return [
        (lambda x: view(y := x * 1, [2, 2], list(y.stride())), [X]),
        (lambda x: view(y := x * 1, [2], [y.stride(0)], y.storage_offset() + y.stride(1)), [X]),
        (lambda x: view(y := (x * 1)[:, 1:], [2, 1], list(y.stride())), [X]),
        (lambda x: view(x * 1, [1, 1], [1, 1]), [values()]),
    ]


def _pool_backward(g: Tensor, x: Tensor) -> Any:
    _, places = A.max_pool2d_with_indices(x, [2, 2])
    return A.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places)


SAMPLES: dict[str, list[Sample]] = {
    "view": [(lambda x: A.view(x, [3, -1]), [X]), (lambda x: A.view(x, [1, 1]), [values()])],
    "reshape": [(lambda x: A.reshape(x, [-1]), [X]), (lambda x: A.reshape(x, [6]), [X])],
    "_unsafe_view": [(lambda x: A._unsafe_view(x * 1, [6]), [X])],
    "expand": [(lambda x: x.expand(4, 2, -1), [X]), (lambda x: x.expand(4), [values()])],
    "repeat": [(lambda x: x.repeat(2, 1, 3), [X])],
    "select.int": [(lambda x: x.select(-1, 1), [X]), (lambda x: x.select(0, -1), [X])],
    "slice.Tensor": [(lambda x: A.slice(x, -2, 0, 2, 1), [X]), (lambda x: x[:, 1:], [X])],
    "squeeze.dim": [(lambda x: x.squeeze(0), [values(1, 3)]), (lambda x: x.squeeze(1), [X])],
    "squeeze.dims": [(lambda x: x.squeeze((0, -1)), [values(1, 3, 1)])],
    "unbind.int": [(lambda x: x.unbind(-1), [X])],
    "split.Tensor": [(lambda x: A.split(x, 2, 1), [X])],
    "split_with_sizes": [(lambda x: A.split_with_sizes(x, [1, 2], -1), [X])],
    "transpose.int": [(lambda x: x.transpose(0, -1), [CUBE])],
    "diagonal": [(lambda x: x.diagonal(1, -1, 0), [SQUARE])],
    "permute": [(lambda x: x.permute(1, -1, 0), [CUBE])],
    "t": [(torch.t, [X]), (torch.t, [V])],
    "unsqueeze": [(lambda x, d=d: x.unsqueeze(d), [X]) for d in (0, -1, 2, -3)],
    "constant_pad_nd": [(lambda x: A.constant_pad_nd(x, [1, 2, 0, 1], 3.0), [X])],
    "unfold_backward": [(lambda g: A.unfold_backward(g, [2, 5], 1, 3, 2), [values(2, 2, 3)])],
    "select_backward": [(lambda g: A.select_backward(g, [2, 3], -1, 2), [values(2)])],
    "slice_backward": [(lambda g: A.slice_backward(g, [2, 5], 1, 1, 5, 2), [values(2, 2)])],
    "select_scatter": [(lambda x, y: A.select_scatter(x, y, -1, 2), [X, values(2)])],
    "slice_scatter": [
        (lambda x, y: A.slice_scatter(x, y, 1, 1), [X, values(2, 2)]),
        (lambda x, y: A.slice_scatter(x, y, -2, None, 1), [X, values(1, 3)]),
    ],
    "diagonal_scatter": [(lambda x, y: A.diagonal_scatter(x, y, 1, -1, 0), [SQUARE, values(2)])],
    "as_strided": _strided(A.as_strided),
    "as_strided_": _strided(A.as_strided_),
    "as_strided_copy": _strided(A.as_strided_copy),
    "resize": [
        (lambda x: A.resize(x.detach(), [3, 2]), [X]),
        (lambda x: A.resize(x.detach(), [4]), [X]),
        (lambda x: A.resize(x.detach().t(), [3, 1]), [X]),
        (lambda x: A.resize(x.detach(), [2, 4])[0], [X]),
    ],
    "as_strided_scatter": [
        (lambda x, y: A.as_strided_scatter(x, y, [2], [1]), [X, values(2)]),
        (lambda x, y: A.as_strided_scatter(x, y, [2, 1], list(x.stride())), [X, values(2, 1)]),
        # writes also to the gaps between elements, which belong to no tensor
        (lambda x, y: A.as_strided_scatter(x[:, ::2], y, [2], [1]), [X, values(2)]),
    ],
    "fill.Tensor": [(A.fill.Tensor, [X, values()]), (A.fill.Tensor, [values(), values()])],
    "copy": [(A.copy, [X, Y]), (A.copy, [X, V]), (lambda x: A.copy(x, X.float()), [X])],
    "_neg_view": [(lambda x: A._neg_view(x).sin(), [X])],
    "_fw_primal": [(lambda x: A._fw_primal(x, 0).sin(), [X])],
    "detach_copy": [(A.detach_copy, [X])],
    "_make_dual": [(_dual, [X, Y])],
    "_unpack_dual": [(_dual, [X, Y])],
    "softmax.int": [(lambda x: x.softmax(0), [X]), (lambda x: x.softmax(0), [values()])],
    "log_softmax.int": [(lambda x: x.log_softmax(-1), [X])],
    "_softmax": [(lambda x: A._softmax(x, 1, False), [X])],
    "_log_softmax": [(lambda x: A._log_softmax(x, -2, False), [X])],
    "_softmax_backward_data": [
        (lambda g, y: A._softmax_backward_data(g, y, 0, torch.float64), [X, Y])
    ],
    "_log_softmax_backward_data": [
        (lambda g, y: A._log_softmax_backward_data(g, y, -1, torch.float64), [X, Y])
    ],
    "cumsum": [(lambda x: x.cumsum(-1), [X]), (lambda x: x.cumsum(0), [values()])],
    "cumprod": [(lambda x: x.cumprod(0), [X])],
    "logcumsumexp": [(lambda x: x.logcumsumexp(1), [X])],
    "cummax": [(lambda x: x.cummax(1), [X])],
    "cummin": [(lambda x: x.cummin(-2), [X])],
    "sort": [(lambda x: A.sort(x, 0, True), [X])],
    "sort.stable": [(lambda x: x.sort(dim=-1, stable=True), [X])],
    "topk": [(lambda x: x.topk(2, 1), [X])],
    "max.dim": [(lambda x: x.max(0), [X]), (lambda x: x.max(-1, keepdim=True), [X])],
    "min.dim": [(lambda x: x.min(1), [X])],
    "median.dim": [(lambda x: x.median(1), [X]), (lambda x: x.median(-2, True), [X])],
    "nanmedian.dim": [(lambda x: x.nanmedian(0), [X])],
    "repeat_interleave.Tensor": [(lambda x: A.repeat_interleave(x.flatten().argsort()), [X])],
    "argmax": [(lambda x: x.argmax(0), [X]), (torch.argmax, [X])],
    "argmin": [(lambda x: x.argmin(-1, keepdim=True), [X])],
    "glu": [(lambda x: A.glu(x, 0), [X])],
    "flip": [(lambda x: x.flip((0, -1)), [X]), (lambda x: x.flip(()), [X])],
    "roll": [
        (lambda x: x.roll((1, 2), (-1, 0)), [X]),
        (lambda x: x.roll(1), [X]),
        (lambda x: x.roll(-2), [V]),
    ],
    "detach": [(torch.detach, [X])],
    "alias": [(A.alias, [X])],
    "clone": [(torch.clone, [X])],
    "ones_like": [(torch.ones_like, [X])],
    "zeros_like": [(torch.zeros_like, [X])],
    "elu_backward": [(lambda g, y: A.elu_backward(g, 1.2, 0.9, 1.1, False, y - 1), [X, Y])],
    "hardshrink_backward": [(lambda g, x: A.hardshrink_backward(g, x, 0.5), [X, Y])],
    "hardsigmoid_backward": [
        (lambda g, x: A.hardsigmoid_backward(g.detach(), x.detach()) * g, [X, Y])
    ],
    "hardswish_backward": [(A.hardswish_backward, [X, Y])],
    "hardtanh_backward": [(lambda g, x: A.hardtanh_backward(g, x, -1, 1), [X, Y])],
    "leaky_relu_backward": [(lambda g, x: A.leaky_relu_backward(g, x, 0.1, False), [X, Y])],
    "log_sigmoid_backward": [(lambda x: A.log_sigmoid_backward(x, x, x.detach()), [X])],
    # torch has no derivative of these with respect to x.
    "mish_backward": [(lambda g, x: A.mish_backward(g.detach(), x.detach()) * g, [X, Y])],
    "silu_backward": [(lambda g, x: A.silu_backward(g.detach(), x.detach()) * g, [X, Y])],
    "_standard_gamma_grad": [
        (lambda a, y: A._standard_gamma_grad(a.detach().abs() + 1, y.detach().abs()) * y, [X, Y])
    ],
    "_dirichlet_grad": [
        (
            lambda x, a, n: A._dirichlet_grad(
                *(x.detach().sigmoid(), a.detach().abs() + 1, n.detach().abs() + 6)
            ),
            [X, Y, Y],
        )
    ],
    "gelu_backward": [
        (lambda g, x, a=a: A.gelu_backward(g, x, approximate=a), [given, Y])
        for a in ("none", "tanh")
        for given in (X, V)
    ],
    "rrelu_with_noise_backward": [
        (
            lambda g, x, n: A.rrelu_with_noise_backward(g, x, n.detach(), 0.1, 0.3, True, False),
            [X, Y, Y],
        )
    ],
    "softplus_backward": [(lambda g, x: A.softplus_backward(g, x, 1, 20), [X, Y])],
    "softshrink_backward": [(lambda g, x: A.softshrink_backward(g, x, 0.5), [X, Y])],
    "pixel_shuffle": [(lambda x: A.pixel_shuffle(x, 2), [values(4, 2, 3)])],
    "pixel_unshuffle": [(lambda x: A.pixel_unshuffle(x, 2), [values(1, 4, 2)])],
    "tril": [(torch.tril, [SQUARE])],
    "triu": [(lambda x: x.triu(1), [X])],
    "linalg_inv_ex": [(A.linalg_inv_ex, [SQUARE])],
    "linalg_inv": [(torch.linalg.inv, [SQUARE]), (torch.linalg.inv, [CUBES])],
    "linalg_cholesky": [(lambda x: torch.linalg.cholesky(x @ x.mT), [SQUARE])],
    "linalg_det": [(torch.linalg.det, [SQUARE])],
    "linalg_eigvalsh": [(lambda x: torch.linalg.eigvalsh(x + x.mT), [SQUARE])],
    "linalg_svdvals": [(torch.linalg.svdvals, [X])],
    "linalg_matrix_exp": [(torch.linalg.matrix_exp, [x]) for x in (SQUARE, CUBES)],
    "linalg_cholesky_ex": [(lambda x: A.linalg_cholesky_ex(x @ x.mT)[0], [SQUARE])],
    "linalg_qr": [(A.linalg_qr, [SQUARE])],
    "linalg_eig": [(lambda x: A.linalg_eig(x)[0], [SQUARE])],
    "_linalg_svd": [(lambda x: A._linalg_svd(x)[1], [X])],
    "_linalg_eigh": [(lambda x: A._linalg_eigh(x + x.mT)[0], [SQUARE])],
    "_linalg_det": [(A._linalg_det, [SQUARE])],
    "_linalg_slogdet": [(A._linalg_slogdet, [SQUARE])],
    "sum.dim_IntList": [
        (lambda x: x.sum(-1), [X]),
        (lambda x: A.sum.dim_IntList(x, [], True), [X]),
        (lambda x: A.sum.dim_IntList(x, []), [values()]),
    ],
    "mean.dim": [(lambda x: x.mean((0, 1)), [X])],
    "amax": [(lambda x: x.amax(0), [X]), (torch.amax, [X])],
    "amin": [(lambda x: x.amin(-1), [X])],
    "nansum": [(torch.nansum, [X])],
    "var.correction": [(torch.var, [X]), (lambda x: x.var(1, correction=0), [X])],
    "std.correction": [(lambda x: x.std(0, keepdim=True), [X])],
    "var_mean.correction": [(lambda x: torch.var_mean(x, -1), [X])],
    "std_mean.correction": [(torch.std_mean, [X])],
    "logsumexp": [(lambda x: x.logsumexp((0, -1)), [X])],
    "linalg_vector_norm": [
        (torch.linalg.vector_norm, [X]),
        (lambda x: torch.linalg.vector_norm(x, 3, -1, True), [X]),
    ],
    "norm.ScalarOpt_dim": [(lambda x: A.norm.ScalarOpt_dim(x, 2, [0]), [X])],
    "prod.dim_int": [(lambda x: x.prod(-1), [X])],
    "all.dim": [(lambda x: (x > 0.5).all(0), [X])],
    "any.dim": [(lambda x: (x > 0.5).any(1, keepdim=True), [X])],
    "sum": [(torch.sum, [X]), (torch.sum, [values()])],
    "mean": [(torch.mean, [X])],
    "max": [(torch.max, [X])],
    "min": [(torch.min, [X])],
    "median": [(torch.median, [X])],
    "nanmedian": [(torch.nanmedian, [X])],
    "matmul": [
        (torch.matmul, [values(*left), values(*right)])
        for left, right in [
            ((3,), (3,)),
            ((3,), (3, 2)),
            ((2, 3), (3,)),
            ((2, 3), (3, 4)),
            ((3,), (2, 3, 4)),
            ((2, 5, 3), (3,)),
            ((2, 5, 3), (3, 4)),
            ((5, 3), (2, 3, 4)),
            ((2, 5, 3), (2, 3, 4)),
            ((4, 1, 5, 3), (2, 3, 4)),
        ]
    ],
    "mm": [(torch.mm, [values(2, 3), values(3, 4)])],
    "mv": [(torch.mv, [X, V])],
    "dot": [(torch.dot, [V, W])],
    "bmm": [(torch.bmm, [values(2, 2, 3), CUBE])],
    "outer": [(A.outer, [V, values(2)])],
    "ger": [(A.ger, [V, values(2)])],
    "linear": [
        (A.linear, [X, values(4, 3), values(4)]),
        (A.linear, [V, values(4, 3)]),
        (A.linear, [CUBE, values(5, 4), values(5)]),
        (A.linear, [X, V]),
    ],
    "addmm": [
        (lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), [values(4), X, values(3, 4)]),
        (torch.addmm, [values(2, 1), X, values(3, 4)]),
        (torch.addmm, [values(), X, values(3, 4)]),
    ],
    "einsum": [
        (lambda *given, equation=equation: torch.einsum(equation, *given), list(tensors))
        for equation, *tensors in [
            ("i,ij->j", V, values(3, 2)),
            ("ij,jk->ik", X, values(3, 4)),
            ("hij,jk->hik", CUBE, values(4, 2)),
            ("ij,jk->ik", X, values(1, 4)),
            ("ij,jk->ki", X, values(3, 4)),
            ("ij,ij->ij", X, values(1, 3)),
            ("i,j", V, values(2)),
            ("ij,j", X, V),
            ("ba", X),
            ("ii->i", SQUARE),
            ("ii", SQUARE),
            ("a b -> ", X),
            ("...ij,...jk->...ik", CUBE, values(4, 2)),
            ("i...,j...", X, values(4, 3)),
            ("a...b->b...", CUBE),
            ("...,...->...", V, values(2, 1)),
            ("ij,jk,kl->il", X, values(3, 2), values(2, 2)),
            (f"{string.ascii_letters[:3]},{string.ascii_letters[1:]}->a", CUBE, _of_ones(51)),
        ]
    ],
    "_cdist_forward": [
        (lambda x, y: A._cdist_forward(x, y, 2.0, None), [values(*left), values(*right) + 1])
        for left, right in [((2, 3), (4, 3)), ((5, 2, 3), (4, 3)), ((2, 3), (5, 4, 3))]
    ],
    "_cdist_backward": [
        (_distances_backward, [values(2, 4), values(2, 3), values(4, 3) + 1]),
        (_distances_backward, [values(5, 2, 4), values(5, 2, 3), values(4, 3) + 1]),
        (_distances_backward, [values(5, 2, 4), values(2, 3), values(5, 4, 3) + 1]),
    ],
    "linalg_lu_solve": [
        (_lu_solve(), [PIVOTED[0], values(3, 2)]),
        (_lu_solve(adjoint=True), [PIVOTED[0], values(4, 3, 2)]),
        (_lu_solve(left=False), [PIVOTED[0], values(4, 2, 3)]),
        (_lu_solve(), [PIVOTED, values(3, 2)]),
        (_lu_solve(left=False, adjoint=True), [PIVOTED[:, None], values(4, 2, 3)]),
    ],
    "_linalg_solve_ex": [
        (A._linalg_solve_ex, [a, values(*b)])
        for a, sizes in {
            SQUARE: [(3,), (3, 2), (4, 3, 1), (3, 3, 1), (5, 1, 3, 2)],
            CUBES: [(3,), (2, 3), (3, 2), (2, 3, 2), (4, 1, 3, 2)],
        }.items()
        for b in sizes
    ],
    "lu_unpack": [
        (_lu_unpack(True, True), [PIVOTED]),
        (_lu_unpack(True, False), [X]),
        (_lu_unpack(False, True), [PIVOTED[0]]),
    ],
    "linalg_solve": [
        (torch.linalg.solve, [SQUARE, V]),
        (torch.linalg.solve, [SQUARE, values(3, 2)]),
        (lambda a, b: torch.linalg.solve(a, b, left=False), [SQUARE, X]),
        (torch.linalg.solve, [values(4, 4) + 3 * torch.eye(4), values(4, 4)]),
        *((torch.linalg.solve, [CUBES, values(*b)]) for b in ((2, 3), (2, 3, 2))),
    ],
    "convolution": [
        (
            lambda x, w, b: A.convolution(x, w, b, *CONV, False, [0, 0], 2),
            [IMAGES, values(4, 1, 2, 2), values(4)],
        ),
        (
            lambda x, w, b: A.convolution(x, w, b, *CONV, True, [1, 0], 2),
            [IMAGES, values(2, 3, 2, 2), values(6)],
        ),
    ],
    "conv1d": [(A.conv1d, [values(2, 5), values(3, 2, 2), V])],
    "conv2d": [(A.conv2d, [x, values(3, 2, 2, 2), V]) for x in (IMAGE, IMAGES)],
    "conv3d": [(A.conv3d, [values(2, 3, 3, 3), values(1, 2, 2, 2, 2), values(1)])],
    "max_pool2d": [(lambda x: A.max_pool2d(x, [2, 2]), [x]) for x in (IMAGE, IMAGES)],
    "upsample_nearest1d": [(lambda x: A.upsample_nearest1d(x, [7]), [values(2, 2, 5)])],
    "upsample_nearest1d.vec": [
        (lambda x: A.upsample_nearest1d.vec(x, None, [2.0]), [values(2, 2, 5)])
    ],
    "upsample_nearest2d": [(lambda x: A.upsample_nearest2d(x, [7, 8]), [IMAGES])],
    "upsample_nearest2d.vec": [(lambda x: A.upsample_nearest2d.vec(x, None, [2.0, 1.5]), [IMAGES])],
    "upsample_bilinear2d": [(lambda x: A.upsample_bilinear2d(x, [7, 8], True), [IMAGES])],
    "upsample_bilinear2d.vec": [
        (lambda x: A.upsample_bilinear2d.vec(x, [7, 8], False, None), [IMAGES])
    ],
    "upsample_bicubic2d": [(lambda x: A.upsample_bicubic2d(x, [7, 8], True), [IMAGES])],
    "upsample_bicubic2d.vec": [
        (lambda x: A.upsample_bicubic2d.vec(x, [7, 8], False, None), [IMAGES])
    ],
    **{
        name: [(_resized_backward(name), [values(2, 2, 6, 8)])]
        for name in (
            "upsample_nearest2d_backward",
            "upsample_bilinear2d_backward",
            "upsample_bicubic2d_backward",
        )
    },
    # Its kernel assumes contiguous last dimensions, which torch's function checks.
    "_scaled_dot_product_flash_attention_for_cpu": [
        (_attention, [HEADS, HEADS + 1, HEADS.sin()]),
        (lambda q, m: _attention(q, q, q, m > 0.4), [HEADS, values(4, 4)]),
        (lambda q, m: _attention(q, q, q, m > 0.4), [HEADS, values(2, 1, 4, 4)]),
        (lambda q, m: _attention(q, q, q, m > 0.4), [HEADS, values(1, 3, 4, 4)]),
        (lambda q: _attention(q, q, q, is_causal=True, scale=2.0), [HEADS]),
    ],
    "_scaled_dot_product_flash_attention_for_cpu_backward": [
        (_attention_backward, [HEADS + 2, HEADS, HEADS + 1, HEADS.sin()]),
    ],
    "convolution_backward": [
        (_convolution_backward, [values(2, 2, 4, 4), IMAGES, values(2, 2, 2, 2)])
    ],
    "max_pool2d_with_indices": [
        (lambda x: A.max_pool2d_with_indices(x, [2, 2]), [x]) for x in (IMAGE, IMAGES)
    ],
    "max_pool2d_with_indices_backward": [
        (_pool_backward, [values(2, 2, 2), IMAGE]),
        (_pool_backward, [values(2, 2, 2, 2), IMAGES]),
    ],
    "avg_pool2d": [(lambda x: A.avg_pool2d(x, [2, 2]), [x]) for x in (IMAGE, IMAGES)],
    "avg_pool2d_backward": [
        (
            lambda g, x: A.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None),
            [values(2, 2, 2, 2), IMAGES],
        )
    ],
    "_adaptive_avg_pool2d": [
        (lambda x: A._adaptive_avg_pool2d(x, [2, 3]), [x]) for x in (IMAGE, IMAGES)
    ],
    "_adaptive_avg_pool2d_backward": [
        (A._adaptive_avg_pool2d_backward, [values(2, 2, 2, 2), IMAGES])
    ],
    "mse_loss": [(A.mse_loss, [X, Y]), (A.mse_loss, [values(), values() + 1])],
    "smooth_l1_loss": [(lambda x, y: A.smooth_l1_loss(x, y, SUM), [X, Y])],
    "huber_loss": [(lambda x, y: A.huber_loss(x, y, NONE, 0.5), [X, Y])],
    "soft_margin_loss": [(lambda x: A.soft_margin_loss(x, Y, MEAN), [X])],
    "binary_cross_entropy": [
        (lambda x, y: A.binary_cross_entropy(x % 1, y % 1), [X, Y]),
        (lambda x, y, w: A.binary_cross_entropy(x % 1, y % 1, w, SUM), [X, Y, V]),
    ],
    "binary_cross_entropy_with_logits": [
        (lambda x, y, w: A.binary_cross_entropy_with_logits(x, y, None, w), [X, Y, V])
    ],
    **{
        f"{name}_backward": [
            (
                lambda g, x, y, op=op, r=r, rest=rest: op(g, x, y.detach(), r, *rest),
                [X if r == NONE else values(), X, Y],
            )
            for r in (MEAN, SUM, NONE)
        ]
        for name, op, *rest in (
            ("mse_loss", A.mse_loss_backward),
            ("smooth_l1_loss", A.smooth_l1_loss_backward, 0.5),
            ("huber_loss", A.huber_loss_backward, 0.5),
            ("soft_margin_loss", A.soft_margin_loss_backward),
        )
    },
    "nll_loss_forward": [
        (lambda x, t=t, r=r, i=i: A.nll_loss_forward(x, t, None, r, i)[0], [x])
        for x, t in ((V, CLASS), (X, CLASSES))
        for r in (MEAN, SUM, NONE)
        for i in (-100, 2)
    ],
    "nll_loss_backward": [
        (
            lambda g, x, n, t=t, r=r: A.nll_loss_backward(g, x, t, None, r, 0, n),
            [values(), x, values()],
        )
        for x, t in ((V, CLASS), (X, CLASSES))
        for r in (MEAN, SUM)
    ],
    "native_layer_norm": [
        (lambda x, w, b: A.native_layer_norm(x, [3], w, b, 1e-5), [X, V, W]),
        (lambda x: A.native_layer_norm(x, [2, 3], None, None, 1e-5), [X]),
    ],
    "native_layer_norm_backward": [
        (lambda g, x, w: _layer_norm_backward(g, x, w, [True, True, True]), [Y, X, V]),
        (lambda g, x, w: _layer_norm_backward(g, x, w, [False, True, False]), [W, V, V]),
    ],
    "native_group_norm": [
        (
            # It reads memory in order, without checking the tensor's strides.
            lambda x, w: A.native_group_norm(in_order(x), in_order(w), None, 2, 4, 3, 2, 1e-5),
            [values(2, 4, 3), values(4)],
        )
    ],
    "native_group_norm_backward": [
        (_group_norm_backward, [values(2, 4, 3).sin(), values(2, 4, 3), values(4)]),
    ],
    "native_batch_norm_backward": [
        (_batch_norm_backward, [values(2, 3, 4).sin(), values(2, 3, 4), V]),
    ],
    "batch_norm": [
        (lambda x, w, b: torch.batch_norm(x, w, b, None, None, True, 0, 1e-5, False), [x, V, W])
        for x in (values(2, 3, 4), values(1, 3, 2, 2))
    ]
    + [
        (
            lambda x, w, m=m: torch.batch_norm(x, w, None, m, W, False, 0, 1e-5, False),
            [values(2, 3, 4), V],
        )
        for m in (V, W)
    ],
    "native_batch_norm": [
        (
            lambda x, w: torch.native_batch_norm(x, w, None, None, None, True, 0, 1e-5),
            [values(2, 3, 4), V],
        ),
        (
            lambda x: torch.native_batch_norm(x, None, V, V, W, False, 0, 1e-5)[0],
            [values(2, 3, 4)],
        ),
    ],
    "index_select": [(lambda x: x.index_select(-1, PLACES), [X])],
    "gather": [(lambda x: x.gather(1, ROWS), [X])],
    "scatter.src": [(lambda x, y: A.scatter(x, 1, ROWS[:, :2], y), [X, values(2, 2)])],
    "scatter.value": [(lambda x: A.scatter(x, -1, ROWS[:, :1], 2.0), [X])],
    "scatter_add": [(lambda x, y: A.scatter_add(x, 0, ROWS, y), [X, Y])],
    "index.Tensor": [
        (lambda x: x[PLACES], [SQUARE]),
        (lambda x: x[:, PLACES, PLACES], [values(2, 3, 3)]),
        (lambda x: x[PLACES, :, PLACES], [values(3, 2, 3)]),
        (lambda x: x[ROWS > 0], [X]),
    ],
    "index_put": [
        (lambda x, y: A.index_put(x, [_places(x)], y), [SQUARE, V]),
        (lambda x, y: A.index_put(x, [None, _places(x), PLACES], y, True), [CUBES, X[:, :2]]),
        (lambda x, y: A.index_put(x, [_places(x), None, PLACES], y), [CUBES[:, :2], X[:, :2]]),
        (lambda x, y: A.index_put(x, [PLACES % 2, None, PLACES], y), [CUBES[:, :2], X[:, :2]]),
    ],
    "index_put_": [
        (lambda x, y: A.index_put_(x.clone(), [None, _places(x)], y), [SQUARE, values(3, 2)]),
        (lambda x, y: A.index_put_(x.clone(), [None, _places(x)[0], PLACES], y), [CUBES, X[:, :2]]),
        (lambda x, y: A.index_put_(x.clone(), [_places(x), MASK[0]], y), [SQUARE, values()]),
        (lambda x, y: A.index_put_(x.clone(), [PLACES % 2, None, PLACES], y), [CUBES, X[:, :1]]),
    ],
    "_index_put_impl_": [
        (lambda x, y: A._index_put_impl_(x.clone(), [None, _places(x)], y), [SQUARE, values(2)]),
    ],
    "embedding": [
        (lambda w: A.embedding(w, PLACES), [SQUARE]),
        (lambda w: A.embedding(w, ROWS), [SQUARE]),
        (lambda w: A.embedding(w, ROWS, 1), [SQUARE]),
        (lambda x: A.embedding(SQUARE, (2 * x).long()), [X]),
    ],
    "masked_scatter": [
        (lambda x, y: A.masked_scatter(x, MASK, y), [X, values(4)]),
        (lambda x, y: A.masked_scatter(x, MASK, y), [V, Y]),
        (lambda x, y: A.masked_scatter(x, x > 0.5, y), [X, Y]),
        (lambda x, y: A.masked_scatter(x, y[0] > 0.5, y), [X, Y]),
        (lambda x, y: A.masked_scatter(x, y > 0.5, y), [values(), values()]),
    ],
    "masked_fill.Tensor": [
        (lambda x, y, v: x.masked_fill(y > 0.5, v), given)
        for given in ([X, Y, values()], [V, Y, values()], [X, V, values()])
    ],
    "masked_scatter_backward": [
        (lambda g: A.masked_scatter_backward(g, MASK, [2, 2]), [X]),
        (lambda g, y: A.masked_scatter_backward(g, y > 0.5, [2, 3]), [X, Y]),
    ],
    "index_fill.int_Tensor": [
        (lambda x, y, at=at: x.index_fill(0, torch.tensor(at), y), [given, values()])
        for at, given in ((0, values()), ([0], values(1)), ([1, 0], X), ([1], X))
    ]
    + [
        (lambda x, y: x.index_fill(-1, PLACES, y), [X, values()]),
        (lambda x, i, y: x.index_fill(1, _places(i), y), [X, values(3), values()]),
        (lambda x, i, y: x.index_fill(0, _places(i)[0], y), [X, values(3), values()]),
    ],
    "index_fill.int_Scalar": [
        (lambda x, i: x.index_fill(1, _places(i), 2.0), [X, values(3)]),
    ],
    "_pack_padded_sequence": [
        (_packed, [values(3, 2)]),
        (_packed, [values(3, 2, 2)]),
        (lambda x: A._pack_padded_sequence(x, torch.tensor([2, 1]), True)[0], [values(2, 3, 2)]),
    ],
    "cat": [(lambda x, y: torch.cat([x, y, x], -1), [X, Y]), (lambda x: torch.cat([x, V]), [W])],
    "stack": [(lambda x, y, d=d: torch.stack([x, y], d), [X, Y]) for d in (0, 2, -1)],
}
