"""A user's program with types. mypy --strict and pyright accept it, and reveal what it states.

test_typing.py also runs it: each value has the type that is stated.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import torchlayers as tl

Params = dict[str, Tensor]


class Point(NamedTuple):
    x: Tensor
    y: Tensor


def loss(weights: Tensor, x: Tensor) -> Tensor:
    return (x @ weights).square().sum()


def model_loss(params: Params, x: Tensor, power: int = 2) -> Tensor:
    return ((x @ params["weight"] + params["bias"]) ** power).sum()


def with_logits(params: Params, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    logits = x @ params["weight"] + params["bias"]
    return logits.sum(), [logits]


def features(params: Params, x: Tensor) -> Params:
    return {"hidden": x @ params["weight"], "bias": params["bias"].sin()}


def product(x: Tensor, *others: Tensor, scale: float = 1.0) -> Tensor:
    for other in others:
        x = x * other
    return scale * x.sum()


def area(point: Point) -> Tensor:
    return point.x * point.y


def running_sum(carry: Tensor, x: Tensor) -> tuple[Tensor, Params]:
    return carry + x, {"before": carry}


weights, x = torch.randn(3), torch.randn(4, 3)
params: Params = {"weight": weights, "bias": torch.zeros(())}
point = Point(torch.tensor(2.0), torch.tensor(3.0))

# Gradients have the type of their argument. The other arguments keep their names and defaults.
assert_type(tl.grad(loss)(weights, x), Tensor)
assert_type(tl.grad(model_loss)(params, x), Params)
assert_type(tl.grad(model_loss)(params, x, power=3), Params)
assert_type(tl.grad(model_loss, argnums=1)(params, x), Tensor)
assert_type(tl.grad(model_loss, 1)(params, x, 3), Tensor)
assert_type(tl.grad(model_loss, argnums=(0, 1))(params, x), tuple[Params, Tensor])
assert_type(tl.grad(product)(weights, weights, scale=2.0), Tensor)
assert_type(tl.grad(product, (0, 1, 2))(x, x, x), tuple[Tensor, Tensor, Tensor])
assert_type(tl.grad(area)(point), Point)
assert_type(tl.grad(with_logits, has_aux=True)(params, x), tuple[Params, list[Tensor]])
assert_type(tl.grad(with_logits, 1, has_aux=True)(params, x), tuple[Tensor, list[Tensor]])
assert_type(tl.grad(model_loss, memory_budget=1.0)(params, x), Params)
assert_type(tl.grad_and_value(model_loss)(params, x), tuple[Params, Tensor])
assert_type(
    tl.grad_and_value(with_logits, has_aux=True)(params, x),
    tuple[Params, tuple[Tensor, list[Tensor]]],
)
assert_type(tl.grad(tl.grad(torch.sin))(torch.tensor(1.0)), Tensor)

# What Python's types can't say is Any: other places, names, taps.
assert_type(tl.grad(model_loss, argnums=-1)(params, x), Any)
assert_type(tl.grad(model_loss, tl.names("weight"))(params, x), Any)

# A batched function has the arguments and results of the function of one sample.
assert_type(tl.vmap(loss, in_dims=(None, 0))(weights, x), Tensor)
assert_type(tl.vmap(features, in_dims=(None, 0))(params, x), Params)
assert_type(tl.vmap(tl.grad(model_loss), in_dims=(None, 0))(params, x), Params)
assert_type(tl.vmap(torch.dot, out_dims=-1, randomness="different")(x, x), Tensor)
assert_type(tl.vmap(with_logits, (None, 0), (0, [-1]))(params, x), tuple[Tensor, list[Tensor]])
assert_type(tl.vmap(loss, (None, 0), chunk_size="auto")(weights, x), Tensor)

# Jacobians of a tensor have the argument's structure; by a tensor, the output's.
assert_type(tl.jacrev(loss)(weights, x), Tensor)
assert_type(tl.jacfwd(model_loss)(params, x), Params)
assert_type(tl.jacrev(features, argnums=1)(params, x), Any)
assert_type(tl.jacfwd(running_sum)(weights, weights), tuple[Tensor, Params])
assert_type(tl.jacfwd(model_loss, (0, 1))(params, x), tuple[Params, Tensor])
assert_type(tl.jacrev(with_logits, has_aux=True)(params, x), tuple[Params, list[Tensor]])
assert_type(tl.hessian(loss)(weights, x), Tensor)
assert_type(tl.hessian(loss, 1)(weights, x), Tensor)
assert_type(
    tl.hessian(loss, (0, 1))(weights, x), tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
)
assert_type(tl.jacfwd(tl.jacrev(loss))(weights, x), Tensor)
assert_type(tl.jacobian(loss)(weights, x), Tensor)
assert_type(tl.jacobian(model_loss, mode="reverse")(params, x), Params)
assert_type(tl.jacobian(model_loss, (0, 1))(params, x), tuple[Params, Tensor])
assert_type(tl.jacobian(with_logits, has_aux=True)(params, x), tuple[Params, list[Tensor]])
assert_type(tl.jacobian(loss).report().mode, str)
assert_type(tl.hessian(loss, mode="auto")(weights, x), Tensor)
assert_type(tl.hessian(loss, 1, mode="sparse")(weights, x), Any)
assert_type(tl.hessian(loss, mode="auto", memory_budget=10**9).report().api, str)
assert_type(tl.costs(loss, weights, x).modes[0].flops, int)
assert_type(tl.laplacian(loss)(weights, x), Tensor)

# Products: primals, tangents and cotangents belong together.
assert_type(tl.jvp(loss, (weights, x), (weights, x)), tuple[Tensor, Tensor])
assert_type(tl.jvp(features, (params, x), (params, x)), tuple[Params, Params])
assert_type(
    tl.jvp(with_logits, (params, x), (params, x), has_aux=True),
    tuple[Tensor, Tensor, list[Tensor]],
)
assert_type(tl.jvp(tl.grad(loss), (weights, x), (weights, x)), tuple[Tensor, Tensor])
output, pull = tl.vjp(features, params, x)
assert_type(output, Params)
assert_type(pull(output), tuple[Params, Tensor])
assert_type(pull(output, retain_graph=False), tuple[Params, Tensor])
value, pull_scalar, aux = tl.vjp(with_logits, params, x, has_aux=True)
assert_type(aux, list[Tensor])
assert_type(pull_scalar(None), tuple[Params, Tensor])
image, push = tl.linearize(features, params, x)
assert_type(push(params, x), Params)
assert_type(tl.hvp(model_loss, (params, x), (params, x)), tuple[Params, Tensor])

# The rest of a training program.
assert_type(tl.checkpoint(model_loss)(params, x, power=4), Tensor)
assert_type(tl.seeded(features, tl.random.key(0))(params, x), Params)
assert_type(tl.functionalize(model_loss, remove="mutations_and_views")(params, x), Tensor)
assert_type(tl.intermediates(lambda x: tl.tap(x.sin(), "sin"))(x), dict[str, Any])
assert_type(tl.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), x), Tensor)
assert_type(tl.fori_loop(0, 3, lambda i, carry: carry * 2, x), Tensor)
assert_type(tl.while_loop(lambda carry: carry.sum() < 9, torch.exp, x), Tensor)
assert_type(tl.scan(running_sum, weights, x), tuple[Tensor, Params])
assert_type(tl.scan(lambda total, _: (2 * total, total), weights, length=3), tuple[Tensor, Tensor])


@tl.compile
def step(params: Params, x: Tensor, rate: float = 0.1) -> Params:
    gradients = tl.grad(model_loss)(params, x)
    return {name: param - rate * gradients[name] for name, param in params.items()}


@tl.compile(backend="replay")
def replayed(x: Tensor, *, scale: float = 1.0) -> Tensor:
    return scale * x.sin()


@tl.custom_jvp
def log1pexp(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


@log1pexp.defjvp
def log1pexp_jvp(primals: tuple[Tensor], tangents: tuple[Tensor]) -> tuple[Tensor, Tensor]:
    return log1pexp(primals[0]), tangents[0] * torch.sigmoid(primals[0])


@tl.custom_vjp
def clipped(x: Tensor) -> Tensor:
    return x.clone()


@tl.sequential_vmap
def sequential(x: Tensor, scale: float = 1.0) -> Tensor:
    return scale * x


@tl.custom_vmap
def batched(x: Tensor) -> Params:
    return {"sum": x.sum()}


@batched.def_vmap
def batched_rule(size: int, in_dims: tuple[int], x: Tensor) -> tuple[Params, int]:
    return {"sum": x.flatten(1).sum(1)}, 0


class Trainer:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    @functools.partial(tl.compile, backend="replay")
    def update(self, weights: Tensor, x: Tensor) -> Tensor:
        return weights - self.rate * tl.grad(loss)(weights, x)

    @tl.compile(backend="replay")
    def value(self, weights: Tensor, x: Tensor) -> Tensor:
        return loss(weights, x)


clipped.defvjp(lambda x: (x, None), lambda _, g: (g.clamp(-1, 1),))
assert_type(log1pexp(x), Tensor)
assert_type(clipped(x), Tensor)
assert_type(sequential(x, scale=2.0), Tensor)
assert_type(batched(x), Params)
assert_type(tl.vmap(clipped)(x), Tensor)
assert_type(tl.checkpoint_name(x, "x"), Tensor)
assert_type(step(params, x, rate=0.2), Params)
assert_type(replayed(x, scale=2.0), Tensor)
assert_type(replayed.report().signatures[0].how, str)
assert_type(Trainer(0.1).value(weights, x), Tensor)
assert_type(tl.compile(tl.vmap(tl.grad(loss), (None, 0)), backend="replay")(weights, x), Tensor)
assert_type(tl.compile(nn.Linear(3, 1), backend="replay")(x), Any)

# Programs without types meet no errors.
tl.grad(lambda w: loss(w, x))(weights)
tl.grad(lambda w, x: (x @ w).sum(), argnums=(0, 1))(weights, x)
tl.grad(lambda w: (w.sum(), w), has_aux=True)(weights)
tl.jacrev(lambda w: w * w)(weights)
tl.jacfwd(tl.jacrev(lambda w: w.sin()))(weights)
tl.hessian(lambda w: (w**3).sum())(weights)
tl.hessian(lambda w: (w**3).sum(), mode="auto")(weights)
tl.jacobian(lambda w: w * w)(weights)
tl.vmap(lambda w: w.sum())(x)
tl.jvp(lambda w: w.sin(), (weights,), (weights,))
tl.vjp(lambda w: w.sin(), weights)[1](weights)
tl.grad(functools.partial(model_loss, power=3))(params, x)
tl.jacrev(nn.Sequential(nn.Linear(3, 1), nn.Tanh()))(weights)

# Nor do nests of transforms of lambdas.
tl.vmap(tl.grad(lambda w: w.sum()))(x)
tl.vmap(tl.grad(lambda w, v: (w * v).sum(), argnums=(0, 1)))(x, x)
tl.vmap(tl.grad(lambda w: (w.sum(), w), has_aux=True))(x)
tl.vmap(tl.jacrev(lambda w, v: w * v))(x, x)
tl.vmap(tl.hessian(lambda w: (w**3).sum()))(x)
tl.vmap(tl.hessian(lambda w: (w**3).sum(), mode="auto"))(x)
tl.vmap(tl.jacobian(lambda w: w.sin()))(x)
tl.vmap(tl.laplacian(lambda w: (w**3).sum()))(x)
tl.grad(tl.grad(lambda w, v: (w * v * v).sum(), 1), 1)(weights[0], weights[1])
tl.grad(lambda w: tl.vmap(tl.grad(torch.sin))(w).sum())(weights)
tl.jvp(tl.grad(lambda w, v: (w * v).sum(), (0, 1)), (weights, weights), (weights, weights))
tl.checkpoint(tl.grad(lambda w, v: (w * v).sum(), (0, 1)))(weights, weights)
tl.compile(tl.vmap(tl.grad(lambda w, v: (w * v).sum(), (0, 1))), backend="replay")(x, x)
