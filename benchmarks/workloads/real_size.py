"""Workloads of real size: derivatives of networks that people train, at the size they train them.

They have no version by hand: for a gradient it would be the same program, and for the others the
small and large workloads have it.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from benchmarks.workloads import specialists
from benchmarks.workloads.layered import Layered
from benchmarks.workloads.networks import CLASSES, WORDS, inputs, integers, mlp, mlp_parameters
from benchmarks.workloads.real_networks import (
    COLOURS,
    RESNET,
    RESNET_18,
    convolutional,
    convolutional_parameters,
    language_model,
    language_model_parameters,
    lstm,
    lstm_parameters,
    resnet,
    resnet_parameters,
    u_net,
    u_net_parameters,
)
from benchmarks.workloads.workload import Network, Parameters, Program, Workload

RATE, CLIP = 0.1, 1.0


def real() -> list[Workload]:
    return [
        transformer_gradient(width=128, blocks=3, samples=8),
        transformer_per_sample(width=128, blocks=3, samples=8),
        transformer_product(width=128, blocks=3, samples=8),
        resnet_per_sample(16),
        laplacian_loss(width=128, points=2048),
        ensemble_of_cnns(members=8, images=32),
        resnet_18_gradient(2),
        transformer_gradient(width=256, blocks=6, samples=8),
        denoising(8),
        recurrent(width=128, steps=32, samples=16),
        private_step(64),
        gauss_newton(16),
        maml_of_a_cnn(tasks=4, images=16),
        hessian_diagonal(512),
    ]


def transformer_gradient(width: int, blocks: int, samples: int) -> Workload:
    params, text = _language(width, blocks, samples)
    return Workload(
        "grad, transformer",
        f"{blocks} blocks, {width} wide, {samples} x {text.shape[1] - 1} words",
        lambda transforms, ops: transforms.grad(functools.partial(_of_words, ops)),
        None,
        (params, text),
    )


def transformer_per_sample(width: int, blocks: int, samples: int) -> Workload:
    params, text = _language(width, blocks, samples)

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        loss = transforms.grad(lambda params, words: _of_words(ops, params, words[None]))
        return transforms.vmap(loss, (None, 0))

    size = f"{blocks} blocks, {width} wide, {samples} x {text.shape[1] - 1} words"
    return Workload(
        "per-sample gradients, transformer",
        size,
        program,
        None,
        (params, text),
        specialists.gradients(*_predicting(params, text)),
    )


def transformer_product(width: int, blocks: int, samples: int) -> Workload:
    params, text = _language(width, blocks, samples)

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def product(params: Parameters, vector: Parameters, text: Tensor) -> Any:
            gradient = transforms.grad(lambda params: _of_words(ops, params, text))
            return transforms.jvp(gradient, (params,), (vector,))[1]

        return product

    size = f"{blocks} blocks, {width} wide, {samples} x {text.shape[1] - 1} words"
    vector = [param.cos() for param in params]
    model, *data = _predicting(params, text)
    return Workload(
        "Hessian-vector product, transformer",
        size,
        program,
        None,
        (params, vector, text),
        specialists.hessian(model, vector, *data),
    )


def resnet_per_sample(images: int) -> Workload:
    network, params = functools.partial(resnet, stages=RESNET), resnet_parameters(RESNET)
    batch = _images(images)
    return Workload(
        "per-sample gradients, ResNet",
        f"7 convolutions, {images} images of 32 x 32",
        _per_sample(network),
        None,
        (params, *batch),
        specialists.gradients(lambda: Layered(network, params, batch[0]), *batch),
    )


def laplacian_loss(width: int, points: int) -> Workload:
    """The residual of Poisson's equation on the plane, squared."""

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def residual(params: Parameters, point: Tensor) -> Tensor:
            slopes = transforms.grad(lambda point: mlp(ops, params, point)[0])
            axes = ops.axes_of(point)
            return 1 + sum(transforms.jvp(slopes, (point,), (axis,))[1] @ axis for axis in axes)

        def loss(params: Parameters, points: Tensor) -> Tensor:
            return (transforms.vmap(residual, (None, 0))(params, points) ** 2).mean()

        return transforms.grad(loss)

    return Workload(
        "grad, PINN's Laplacian loss",
        f"3 x {width} wide, {points:,} points",
        program,
        None,
        (mlp_parameters([2, width, width, width, 1]), inputs(points, 2)),
    )


def ensemble_of_cnns(members: int, images: int) -> Workload:
    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        return transforms.vmap(transforms.grad(_of_images(ops, convolutional)), (0, None, None))

    params = convolutional_parameters([16, 32], 32, (members,))
    return Workload(
        f"gradients, ensemble of {members} CNNs",
        f"2 convolutions, {images} images of 32 x 32",
        program,
        None,
        (params, *_images(images)),
    )


def resnet_18_gradient(images: int) -> Workload:
    network = functools.partial(resnet, stages=RESNET_18)
    return Workload(
        "grad, ResNet-18",
        f"{images} images of 64 x 64",
        lambda transforms, ops: transforms.grad(_of_images(ops, network)),
        None,
        (resnet_parameters(RESNET_18), *_images(images, 64)),
    )


def denoising(images: int) -> Workload:
    """The loss of a denoising diffusion model (Ho 2020), at one noise level."""

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def loss(params: Parameters, images: Tensor, noise: Tensor) -> Tensor:
            return ((u_net(ops, params, 0.8 * images + 0.6 * noise) - noise) ** 2).mean()

        return transforms.grad(loss)

    x = inputs(images, COLOURS, 32, 32)
    return Workload(
        "grad, U-Net's denoising loss",
        f"3 levels, {images} images of 32 x 32",
        program,
        None,
        (u_net_parameters(), x.sin(), x),
    )


def recurrent(width: int, steps: int, samples: int) -> Workload:
    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def loss(params: Parameters, words: Tensor, labels: Tensor) -> Tensor:
            return ops.cross_entropy(lstm(ops, params, words), labels)

        return transforms.grad(loss)

    words, labels = integers(WORDS, samples, steps), integers(WORDS, samples)
    return Workload(
        "grad, LSTM",
        f"{width} wide, {samples} x {steps} words",
        program,
        None,
        (lstm_parameters(width), words, labels),
    )


def private_step(images: int) -> Workload:
    """A step of DP-SGD (Abadi 2016): clipped gradients, their mean, noise."""

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        per_sample = _per_sample(convolutional)(transforms, ops)

        def step(params: Parameters, noise: Parameters, images: Tensor, labels: Tensor) -> Any:
            return _moved(params, noise, per_sample(params, images, labels))

        return step

    params, batch = convolutional_parameters([16, 32], 32), _images(images)
    noise = [param.sin() / 100 for param in params]
    return Workload(
        "DP-SGD step, CNN",
        f"2 convolutions, {images} images of 32 x 32",
        program,
        None,
        (params, noise, *batch),
        specialists.gradients(
            lambda: Layered(convolutional, params, batch[0]),
            *batch,
            then=functools.partial(_moved, params, noise),
        ),
    )


def _moved(params: Parameters, noise: Parameters, each: list[Tensor]) -> list[Tensor]:
    """The parameters after a step by the mean of the samples' clipped gradients, and noise."""
    rows = [gradient.reshape(len(gradient), -1) for gradient in each]
    norm = sum((row**2).sum(1) for row in rows) ** 0.5
    share = (CLIP / norm).clip(max=1.0) / len(rows[0])
    steps = [(share @ row).reshape(param.shape) for row, param in zip(rows, params)]  # noqa: B905
    return [
        param - RATE * (step + draw) for param, step, draw in zip(params, steps, noise, strict=True)
    ]


def gauss_newton(images: int) -> Workload:
    """The product of a vector and the Gauss-Newton matrix (Schraudolph 2002)."""
    network = functools.partial(resnet, stages=RESNET)

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def product(params: Parameters, vector: Parameters, images: Tensor) -> Any:
            def logits(params: Parameters) -> Tensor:
                return network(ops, params, images)

            outputs, tangent = transforms.jvp(logits, (params,), (vector,))
            chances = ops.softmax(outputs, -1)
            curved = chances * (tangent - (chances * tangent).sum(-1)[:, None])
            return transforms.vjp(logits, params)[1](curved / len(images))[0]

        return product

    params, batch = resnet_parameters(RESNET), _images(images)
    vector = [param.cos() for param in params]
    return Workload(
        "Gauss-Newton product, ResNet",
        f"7 convolutions, {images} images of 32 x 32",
        program,
        None,
        (params, vector, batch[0]),
        specialists.gauss_newton(lambda: Layered(network, params, batch[0]), vector, *batch),
    )


def maml_of_a_cnn(tasks: int, images: int) -> Workload:
    """The meta-gradient of a CNN that takes one step on its task (Finn 2017)."""

    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        loss = _of_images(ops, convolutional)

        def adapted(params: Parameters, images: Tensor, labels: Tensor) -> Tensor:
            steps = transforms.grad(loss)(params, images, labels)
            moved = [param - RATE * step for param, step in zip(params, steps, strict=True)]
            return loss(moved, -images, labels)

        def mean(params: Parameters, images: Tensor, labels: Tensor) -> Tensor:
            return transforms.vmap(adapted, (None, 0, 0))(params, images, labels).mean()

        return transforms.grad(mean)

    batch = inputs(tasks, images, COLOURS, 32, 32), integers(CLASSES, tasks, images)
    return Workload(
        "MAML of a CNN",
        f"2 convolutions, {tasks} tasks of {images} images of 32 x 32",
        program,
        None,
        (convolutional_parameters([16, 32], 32), *batch),
    )


def hessian_diagonal(width: int) -> Workload:
    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        def diagonal(params: Parameters, x: Tensor) -> Tensor:
            slopes = transforms.grad(lambda x: mlp(ops, params, x)[0])
            entry = transforms.vmap(lambda axis: transforms.jvp(slopes, (x,), (axis,))[1] @ axis)
            return entry(ops.axes_of(x))

        return diagonal

    return Workload(
        "Hessian's diagonal, MLP",
        f"{width} inputs, 2 x {width} wide",
        program,
        None,
        (mlp_parameters([width, width, width, 1]), inputs(width)),
    )


def _language(width: int, blocks: int, samples: int) -> tuple[Parameters, Tensor]:
    """Parameters, and texts of 63 words and their next."""
    return language_model_parameters(width, blocks, 63), integers(WORDS, samples, 64)


def _of_words(ops: ModuleType, params: Parameters, text: Tensor) -> Tensor:
    return ops.cross_entropy(_guesses(ops, params, text[:, :-1]), text[:, 1:].reshape(-1))


def _guesses(ops: ModuleType, params: Parameters, words: Tensor) -> Tensor:
    """The logits of all samples' next words, [samples * words, WORDS]."""
    return language_model(ops, params, words).reshape(-1, WORDS)


def _predicting(params: Parameters, text: Tensor) -> tuple[specialists.Model, Tensor, Tensor]:
    """The language model as a module, its inputs, and their labels."""
    words = text[:, :-1]
    return lambda: Layered(_guesses, params, words), words, text[:, 1:].reshape(-1)


def _images(count: int, size: int = 32) -> tuple[Tensor, Tensor]:
    return inputs(count, COLOURS, size, size), integers(CLASSES, count)


def _of_images(ops: ModuleType, network: Network) -> Callable[..., Any]:
    return lambda params, images, labels: ops.cross_entropy(network(ops, params, images), labels)


def _per_sample(network: Network) -> Program:
    def program(transforms: ModuleType, ops: ModuleType) -> Callable[..., Any]:
        loss = _of_images(ops, network)
        each = transforms.grad(lambda params, image, label: loss(params, image[None], label[None]))
        return transforms.vmap(each, (None, 0, 0))

    return program
