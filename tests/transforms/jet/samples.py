"""Sample calls for operators with rules of jet that no other samples reach.

Each has the function, the primals, and, if torch can't differentiate the operator twice, a function
that equals it.
"""

from typing import Any

import torch

from tests.rules.forward.samples import IDS, X, Y, unit, values

A = torch.ops.aten
NOISE = unit(2, 3)
EYE = torch.eye(3, dtype=torch.float64)
LAYER_NORM = [values(4, 3), values(4, 3) + 1, values(3), values(3)]
QUERY = [values(1, 2, 3, 4), values(1, 2, 3, 4) * 2, values(1, 2, 3, 4) - 1]


def layer_norm_backward(g, x, weight, bias):
    _, mean, rstd = A.native_layer_norm(x, [3], weight, bias, 1e-5)
    return A.native_layer_norm_backward(g, x, [3], mean, rstd, weight, bias, [True, True, True])


def layer_norm_gradients(g, x, weight, bias):
    def normalized(x, weight, bias):
        mean = x.mean(1, keepdim=True)
        return (x - mean) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt() * weight + bias

    return torch.func.vjp(normalized, x, weight, bias)[1](g)


SAMPLES: dict[str, tuple[Any, ...]] = {
    "_log_softmax_backward_data": (
        lambda g, x: A._log_softmax_backward_data(g, x.log_softmax(1), 1, torch.float64),
        [X, Y],
    ),
    "_native_batch_norm_legit.no_stats": (
        lambda x, w, b: A._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)[0],
        [values(4, 3), values(3), values(3)],
        lambda x, w, b: torch.nn.functional.layer_norm(x.t(), [4]).t() * w + b,
    ),
    "_scaled_dot_product_flash_attention_for_cpu": (
        lambda q, k, v: A._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)[0],
        QUERY,
    ),
    "complex, with a constant": (lambda x: torch.complex(x.sin(), Y).exp(), [X]),
    "convolution_backward": (
        lambda g, x, w: A.convolution_backward(
            *(g, x, w, [2], [2], [1], [1], False, [0], 1, [True, True, True])
        ),
        [values(2, 2, 3), values(2, 3, 5), values(2, 3, 2)],
    ),
    "convolution_backward, by the input only": (
        lambda g, x, w: A.convolution_backward(
            *(g, x, w, None, [2], [1], [1], False, [0], 1, [True, False, False])
        )[0],
        [values(2, 2, 3), values(2, 3, 5), values(2, 3, 2)],
    ),
    "convolution_backward, by the weight only": (
        lambda g, x, w: A.convolution_backward(
            *(g, x, w, None, [2], [1], [1], False, [0], 1, [False, True, False])
        )[1],
        [values(2, 2, 3), values(2, 3, 5), values(2, 3, 2)],
    ),
    "gelu_backward": (lambda g, x: A.gelu_backward(g, x, approximate="tanh"), [X, Y]),
    "hardshrink_backward": (lambda g, x: A.hardshrink_backward(g, x, 0.5), [X, Y]),
    "hardsigmoid_backward": (A.hardsigmoid_backward, [X, Y]),
    "hardtanh_backward": (lambda g, x: A.hardtanh_backward(g, x, -1, 1), [X, Y]),
    "leaky_relu_backward": (lambda g, x: A.leaky_relu_backward(g, x, 0.1, False), [X, Y]),
    "linalg_cholesky_ex": (lambda x: torch.linalg.cholesky(x @ x.mT + EYE), [values(3, 3)]),
    "linalg_cholesky_ex, upper": (
        lambda x: torch.linalg.cholesky(x @ x.mH + EYE, upper=True),
        [torch.complex(values(2, 3, 3), unit(2, 3, 3))],
    ),
    "native_dropout": (lambda x: A.native_dropout(x, 0.5, True)[0], [X]),
    "native_layer_norm_backward": (layer_norm_backward, LAYER_NORM, layer_norm_gradients),
    "nll_loss2d_forward": (
        lambda x: A.nll_loss2d_forward(x, IDS[None], None, 1, -100)[0],
        [values(1, 3, 2, 2)],
    ),
    "pow.Scalar": (lambda x: A.pow.Scalar(2.5, x), [X]),
    "scatter_add, to a constant": (lambda x: Y.scatter_add(0, torch.zeros(2, 3).long(), x), [X]),
    "scatter_add, of a constant": (lambda x: x.scatter_add(0, torch.zeros(2, 3).long(), Y), [X]),
    "sigmoid_backward": (A.sigmoid_backward, [X, Y]),
    "softshrink_backward": (lambda g, x: A.softshrink_backward(g, x, 0.5), [X, Y]),
    "tanh_backward": (A.tanh_backward, [X, Y]),
    "threshold_backward": (lambda g, x: A.threshold_backward(g, x, 0.5), [X, Y]),
}
