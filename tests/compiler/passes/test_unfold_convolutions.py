"""Rewrites for a compiler that fuses operators: convolutions, shared values."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import group_norm

import torchlayers as tl
from tests.compiler.passes.simplified import operators, same
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.passes.unfold_convolutions import keeps_channels_outermost

CONVOLUTIONS = {
    "plain": ((2, 3, 5, 6), (4, 3, 3, 2), {}),
    "padded": ((2, 3, 5, 6), (4, 3, 3, 3), {"padding": 1}),
    "padded, one way": ((2, 3, 5, 6), (4, 3, 3, 1), {"padding": (1, 0)}),
    "in steps": ((2, 3, 7, 6), (4, 3, 3, 2), {"stride": (2, 1)}),
    "with holes": ((2, 3, 7, 8), (4, 3, 2, 3), {"dilation": (2, 3)}),
    "all at once": ((2, 3, 9, 8), (4, 3, 3, 3), {"stride": 2, "dilation": 2, "padding": (2, 1)}),
    "of one dimension": ((2, 3, 9), (4, 3, 3), {"padding": 1}),
    "of three": ((2, 3, 4, 5, 4), (4, 3, 2, 3, 2), {"padding": 1}),
    "of one channel and sample": ((1, 1, 5, 6), (1, 1, 3, 2), {}),
    "in groups": ((2, 4, 5, 6), (6, 2, 3, 2), {"groups": 2}),
    "padded more than it reaches": ((2, 3, 5, 6), (4, 3, 1, 1), {"padding": 1}),
}


def convolution(name):
    sizes, kernel, options = CONVOLUTIONS[name]
    function = getattr(torch, f"conv{len(sizes) - 2}d")
    return lambda image, weight, bias: function(image, weight, bias, **options), sizes, kernel


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_products(name, dtype):
    func, sizes, kernel = convolution(name)
    args = [torch.randn(shape, dtype=dtype) for shape in (sizes, kernel, kernel[:1])]
    graph = same(func, *args, exact=False, fuse_small=True)
    assert "convolution" not in operators(graph)
    same(lambda *args: func(*args[:2], None), *args, exact=False, fuse_small=True)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_derivatives_of_convolutions_are_products(name):
    func, sizes, kernel = convolution(name)
    args = [torch.randn(shape, dtype=torch.float64) for shape in (sizes, kernel, kernel[:1])]

    def loss(*args: Tensor) -> Tensor:
        return func(*args).sin().sum()

    graph = same(tl.grad(loss, (0, 1, 2)), *args, exact=False, fuse_small=True)
    left = {"padded more than it reaches", "in steps", "all at once"}
    assert ("convolution_backward" in operators(graph)) == (name in left)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_weights_gradients_of_each_sample_are_products(name):
    func, sizes, kernel = convolution(name)
    args = [torch.randn(shape, dtype=torch.float64) for shape in (kernel, kernel[:1], (3, *sizes))]

    def loss(weight: Tensor, bias: Tensor, image: Tensor) -> Tensor:
        return func(image, weight, bias).sin().sum()

    gradients = tl.vmap(tl.grad(loss, (0, 1)), (None, None, 0))
    same(gradients, *args, exact=False, fuse_small=True)


def test_gathered_windows_are_shared():
    func, sizes, kernel = convolution("padded")

    def gradients(weight: Tensor, images: Tensor) -> Tensor:
        def loss(weight: Tensor, image: Tensor) -> Tensor:
            return func(image[None], weight, None).sin().sum()

        return tl.vmap(tl.grad(loss), (None, 0))(weight, images)

    graph = same(gradients, torch.randn(kernel), torch.randn(sizes), exact=False, fuse_small=True)
    assert operators(graph).count("constant_pad_nd") == 1


def convolutions_left(func, *args: Tensor) -> set[str]:
    """The library's convolutions in the simplified graph, compared with the captured one."""
    names = operators(same(func, *args, exact=False, fuse_small=True))
    return {*names} & {"convolution", "convolution_backward"}


def test_large_convolutions_stay_convolutions():
    images, kernel = torch.randn(1, 64, 34, 34), torch.randn(64, 64, 3, 3)
    assert convolutions_left(torch.conv2d, images, kernel) == {"convolution"}
    half = [torch.randn(shape).half() for shape in ((1, 2, 4, 4), (2, 2, 3, 3))]
    assert operators(same(torch.conv2d, *half, fuse_small=True)) == ["convolution"]


def per_sample_gradients(kernel: Tensor, images: Tensor) -> Tensor:
    def loss(kernel: Tensor, image: Tensor) -> Tensor:
        return torch.conv2d(image[None], kernel, padding=1).sin().sum()

    return tl.vmap(tl.grad(loss), (None, 0))(kernel, images)


def normalized_per_sample_gradients(kernel: Tensor, images: Tensor) -> Tensor:
    def loss(kernel: Tensor, image: Tensor) -> Tensor:
        return group_norm(torch.conv2d(image[None], kernel, padding=1), 2).sin().sum()

    return tl.vmap(tl.grad(loss), (None, 0))(kernel, images)


def test_kernels_gradients_per_sample_are_products_if_the_image_has_few_channels():
    """The library has fast kernels for groups of few channels only if these are innermost."""
    few = torch.randn(16, 3, 3, 3).double(), torch.randn(16, 3, 16, 16).double()
    assert convolutions_left(normalized_per_sample_gradients, *few) == {"convolution"}
    assert convolutions_left(per_sample_gradients, *few) == {"convolution", "convolution_backward"}
    many = torch.randn(16, 16, 3, 3).double(), torch.randn(16, 16, 16, 16).double()
    both = {"convolution", "convolution_backward"}
    assert convolutions_left(normalized_per_sample_gradients, *many) == both
    small = torch.randn(8, 16, 3, 3).double(), torch.randn(4, 16, 4, 4).double()
    assert convolutions_left(per_sample_gradients, *small) == set()


@pytest.mark.sweep
def test_images_stay_in_torchs_layout_beside_group_norms():
    kernel, images = torch.randn(8, 3, 3, 3).double(), torch.randn(2, 3, 16, 16).double()
    kept = [
        keeps_channels_outermost(record(func, (kernel, images)).graph)
        for func in (per_sample_gradients, normalized_per_sample_gradients)
    ]
    assert kept == [False, True]
    compiled = tl.compile(normalized_per_sample_gradients)
    single = compiled(kernel.float(), images.float())
    expected = normalized_per_sample_gradients(kernel, images)
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-4)


def ensembles_gradients(kernels: Tensor, biases: Tensor, images: Tensor) -> tuple[Tensor, ...]:
    def loss(kernel: Tensor, bias: Tensor, images: Tensor) -> Tensor:
        made = torch.conv2d(images.sin(), kernel, bias, padding=1)
        return group_norm(made, 2).sin().sum()

    return tl.vmap(tl.grad(loss, (0, 1, 2)))(kernels, biases, images)


@pytest.mark.sweep
@pytest.mark.parametrize("images", [1, 96])
def test_kernels_gradients_of_an_ensemble_are_products_if_the_images_have_few_channels(images):
    def args(channels: int) -> tuple[Tensor, ...]:
        shapes = (4, 16, channels, 3, 3), (4, 16), (4, images, channels, 8, 8)
        return tuple(torch.randn(shape).double() for shape in shapes)

    few = convolutions_left(ensembles_gradients, *args(3))
    many = convolutions_left(ensembles_gradients, *args(16))
    assert few == ({"convolution_backward"} if images > 1 else set())  # that of the images
    assert many == ({"convolution", "convolution_backward"} if images > 1 else set())


@pytest.mark.full  # many differences, 8 s
def test_kernels_gradients_of_an_ensemble_match_finite_differences():
    """In float64: the products of each group's windows, with respect to all three arguments."""
    shapes = (2, 2, 3, 2, 2), (2, 2), (2, 2, 3, 4, 3)
    args = [torch.randn(shape, dtype=torch.float64) for shape in shapes]

    def func(*args: Tensor) -> Tensor:
        return tl.vmap(lambda kernel, bias, x: torch.conv2d(x, kernel, bias).sin().sum())(*args)

    compiled = tl.compile(lambda *args: tl.grad(lambda *args: func(*args).sum(), (0, 1, 2))(*args))
    for at, gradient in enumerate(compiled(*args)):
        step = 1e-6
        for i in range(0, gradient.numel(), 5):
            moved = [arg.clone() for arg in args]
            moved[at].view(-1)[i] += step
            other = [arg.clone() for arg in args]
            other[at].view(-1)[i] -= step
            slope = (func(*moved).sum() - func(*other).sum()) / (2 * step)
            torch.testing.assert_close(gradient.flatten()[i], slope, rtol=1e-6, atol=1e-6)


def test_values_shared_by_all_samples_are_materialized():
    def func(x: Tensor, batch: Tensor) -> Tensor:
        return (x.exp() + 1)[None] * batch

    graph = same(func, torch.randn(5), torch.randn(8, 5), fuse_small=True)
    kept = [node for node in graph.graph.nodes if "force_stride" in str(node.target)]
    assert [str(node.args[0].target) for node in kept] == ["aten.add.Tensor"]
    cheap = same(
        lambda x, batch: (x + 1) * batch, torch.randn(5), torch.randn(8, 5), fuse_small=True
    )
    assert operators(cheap) == ["add", "mul"]


def test_simplifying_a_long_chain_is_not_exponential():
    def func(x: Tensor) -> Tensor:
        for _ in range(60):
            x = x.exp() * x.sin()  # each is read twice: 2 ** 60 paths from end to start
        return x

    same(func, torch.randn(3), exact=False, fuse_small=True)


def test_product_of_equal_rows_becomes_one_of_one_row():
    """The product of one row is one with a vector, which costs less than one of matrices."""
    row, column = torch.randn(3), torch.randn(4, 3)
    for func, given in (
        (lambda x, y: x.expand(6, 3) @ y, (row, column.t())),
        (lambda x, y: y @ x.expand(6, 3).t(), (row, column)),
        (lambda x, y: x[None] @ y, (row, column.t())),
    ):
        names = operators(same(func, *given, exact=False))
        assert [name for name in names if name in ("mm", "mv")] == ["mv"]
