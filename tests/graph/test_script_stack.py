"""Differentiated TorchScript graphs under the transforms of torchlayers and torch.func."""

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.graph.script_corpus import FUNCTIONS
from torchlayers.graph import differentiate

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # cumprod's gradient
]

# Cases whose first argument is a tensor, whose tensors are float64, and without randomness.
CHOSEN = [
    "product_and_tanh",
    "numbers_on_both_sides",
    "chosen",
    "activations",
    "softmaxes",
    "sums",
    "variances",
    "extrema",
    "matrices",
    "matmul_with_broadcasting",
    "linear",
    "reshaping",
    "slices",
    "chunks",
    "splits",
    "concatenating",
    "loop_that_unrolls",
    "nested_loops",
    "under_no_grad",
    "written_in_place",
    "written_in_parts",
    "views_written_elsewhere",
    "products",
    "running_products_and_extrema",
    "einsums",
    "stacked_in_three_ways",
    "variances_with_their_means",
    "rms_norms",
    "convolution_2d",
    "layer_norm",
    "group_norm",
]


def scalar(function):
    """Returns f with its result reduced by a smooth sum, so that all of it has a gradient."""
    return lambda *args: (function(*args).cos() * 2).sum()


def stacked(args):
    return tuple(torch.stack([x, x * 0.9, x - 0.1]) for x in args)


NESTS = {
    "grad": lambda tf, f, args: tf.grad(scalar(f))(*args),
    "jvp": lambda tf, f, args: tf.jvp(f, args, tuple(x.cos() for x in args)),
    "vmap": lambda tf, f, args: tf.vmap(f)(*stacked(args)),
    "vmap(grad)": lambda tf, f, args: tf.vmap(tf.grad(scalar(f)))(*stacked(args)),
    "grad(vmap)": lambda tf, f, args: tf.grad(scalar(tf.vmap(f)))(*stacked(args)),
    "jvp(grad)": lambda tf, f, args: tf.jvp(tf.grad(scalar(f)), args, tuple(x.sin() for x in args)),
    "grad(grad)": lambda tf, f, args: tf.grad(lambda *xs: tf.grad(scalar(f))(*xs).square().sum())(
        *args
    ),
}


@pytest.fixture(params=CHOSEN)
def chosen(request):
    torch.manual_seed(0)
    case = FUNCTIONS[request.param]
    return case.make(), case.args()


@pytest.mark.sweep
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("tf", [tl, torch.func], ids=["torchlayers", "torch.func"])
def test_it_is_right_under_transforms(chosen, nest, tf):
    function, args = chosen
    gradient = differentiate(torch.jit.script(function))
    torch.testing.assert_close(
        NESTS[nest](tf, gradient, args), NESTS[nest](torch.func, function, args)
    )
