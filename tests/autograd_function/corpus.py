"""Typical autograd.Functions, each with an equivalent function of plain operators.

`function` registers a class as a Case; its inputs are float64 and one sample each.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import torchlayers as tl


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    function: type[Function]
    inputs: tuple[torch.Tensor, ...]
    plain: Callable[..., Any]
    # How the Function is called: by default with the inputs alone.
    call: Callable[..., Any]
    twice: bool  # its backward can be differentiated, also by its jvp


CASES: list[Case] = []


def tensor(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(CASES) + 1)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5


def function(
    *inputs: torch.Tensor,
    plain: Callable[..., Any],
    call: Callable[..., Any] = lambda apply, *xs: apply(*xs),
    twice: bool = True,
) -> Callable[[type[Function]], type[Function]]:
    def register(cls: type[Function]) -> type[Function]:
        CASES.append(Case(cls.__name__, cls, inputs, plain, call, twice))
        return cls

    return register


def saves_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.save_for_forward(*inputs)


def saves_output(ctx, inputs, output):
    ctx.save_for_backward(output)
    ctx.save_for_forward(output)


class Batchable(Function):
    generate_vmap_rule = True
    setup_context = staticmethod(saves_inputs)


# One input, one output


@function(tensor(3), plain=lambda x: x * x)
class Square(Batchable):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g

    @staticmethod
    def jvp(ctx, t):
        return 2 * ctx.saved_tensors[0] * t


@function(tensor(3), plain=torch.exp)
class Exp(Batchable):
    setup_context = staticmethod(saves_output)

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0]


@function(tensor(3), plain=torch.tanh)
class TanhByVjp(Batchable):
    """Defines vjp, the other name of backward."""

    setup_context = staticmethod(saves_output)

    @staticmethod
    def forward(x):
        return x.tanh()

    @staticmethod
    def vjp(ctx, g):
        return g * (1 - ctx.saved_tensors[0] ** 2)

    @staticmethod
    def jvp(ctx, t):
        return t * (1 - ctx.saved_tensors[0] ** 2)


@function(tensor(3), plain=torch.exp, call=lambda apply, x: apply(x.clone()))
class ExpInPlace(Batchable):
    """Marks its input as dirty and returns it."""

    @staticmethod
    def forward(x):
        return x.exp_()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, t):
        return t.mul_(ctx.saved_tensors[0])


@function(tensor(3), plain=lambda x: x * 1.0)
class Identity(Batchable):
    """Returns its input as it is."""

    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, t):
        return t.view_as(t)


@function(tensor(2, 3), plain=lambda x: x.sum(0))
class SumOverShape(Batchable):
    """Saves a shape, which must be that of one sample."""

    @staticmethod
    def forward(x):
        return x.sum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape)

    @staticmethod
    def jvp(ctx, t):
        return t.sum(0)


@function(tensor(2, 3), plain=lambda x: x.mean())
class Mean(Batchable):
    @staticmethod
    def forward(x):
        return x.mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.count = inputs[0].numel()
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, g):
        return (g / ctx.count).expand(ctx.shape)

    @staticmethod
    def jvp(ctx, t):
        return t.mean()


@function(tensor(2, 3), plain=lambda x: x.reshape(-1))
class Flatten(Batchable):
    """Its output is a view of its input."""

    @staticmethod
    def forward(x):
        return x.view(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, g):
        return g.reshape(ctx.shape)

    @staticmethod
    def jvp(ctx, t):
        return t.view(-1)


@function(tensor(4), plain=lambda x: x[1:3])
class Middle(Batchable):
    @staticmethod
    def forward(x):
        return x[1:3]

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return torch.nn.functional.pad(g, (1, 1))

    @staticmethod
    def jvp(ctx, t):
        return t[1:3]


@function(tensor(3), plain=lambda x: x.clamp(min=0.9))
class ClampInPlaceOnFresh(Batchable):
    """Writes to its own new tensors, in forward and backward."""

    @staticmethod
    def forward(x):
        return x.clone().clamp_min_(0.9)

    @staticmethod
    def backward(ctx, g):
        grad = g.clone()
        grad.mul_(ctx.saved_tensors[0] >= 0.9)
        return grad

    @staticmethod
    def jvp(ctx, t):
        return t * (ctx.saved_tensors[0] >= 0.9)


@function(tensor(3), plain=lambda x: x.softmax(-1))
class Softmax(Batchable):
    setup_context = staticmethod(saves_output)

    @staticmethod
    def forward(x):
        return x.softmax(-1)

    @staticmethod
    def backward(ctx, g):
        y = ctx.saved_tensors[0]
        return y * (g - (y * g).sum(-1, keepdim=True))

    @staticmethod
    def jvp(ctx, t):
        y = ctx.saved_tensors[0]
        return y * (t - (y * t).sum(-1, keepdim=True))


@function(tensor(3), plain=lambda x: x.logsumexp(-1))
class LogSumExp(Batchable):
    @staticmethod
    def forward(x):
        return x.logsumexp(-1)

    @staticmethod
    def backward(ctx, g):
        return g.unsqueeze(-1) * ctx.saved_tensors[0].softmax(-1)

    @staticmethod
    def jvp(ctx, t):
        return (t * ctx.saved_tensors[0].softmax(-1)).sum(-1)


@function(tensor(3), plain=lambda x: x * x.sigmoid())
class Swish(Batchable):
    """Memory-efficient swish: backward recomputes the forward."""

    @staticmethod
    def forward(x):
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return g * s * (1 + x * (1 - s))

    @staticmethod
    def jvp(ctx, t):
        return Swish.backward(ctx, t)


@function(tensor(3), plain=lambda x: x + 0 * x.round().detach(), twice=False)
class StraightThrough(Batchable):
    """Rounds, with the identity's gradient, which differs from autograd's."""

    @staticmethod
    def forward(x):
        return x.round() - x.round() + x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


@function(tensor(3), plain=lambda x: x.exp(), twice=False)
class OnceDifferentiable(Batchable):
    setup_context = staticmethod(saves_output)

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


@function(tensor(3), plain=lambda x: x**3)
class KeepsTensorOnCtx(Batchable):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.x = inputs[0]
        ctx.others = {"x": [inputs[0]], "power": 3}

    @staticmethod
    def backward(ctx, g):
        return ctx.others["power"] * ctx.x * ctx.others["x"][0] * g

    @staticmethod
    def jvp(ctx, t):
        return 3 * ctx.x**2 * t


@function(tensor(3), plain=lambda x: 1 / x)
class WithoutMaterializedGrads(Batchable):
    @staticmethod
    def forward(x):
        return 1 / x, x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[0])
        ctx.save_for_forward(output[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g, g_sign):
        assert g_sign is None
        return None if g is None else -g * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx, t):
        return None if t is None else -t * ctx.saved_tensors[0] ** 2, None


CASES[-1] = dataclasses.replace(CASES[-1], call=lambda apply, x: apply(x)[0])


@function(tensor(3), plain=lambda x: x * 3, call=lambda apply, x: apply(x, 3))
class TimesNumber(Batchable):
    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None

    @staticmethod
    def jvp(ctx, t, t_factor):
        assert t_factor is None
        return t * ctx.factor


@function(tensor(3), plain=lambda x: x * 2)
class DefaultArgument(Batchable):
    @staticmethod
    def forward(x, factor=2.0):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1] if len(inputs) > 1 else 2.0  # absent in the old style

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None

    @staticmethod
    def jvp(ctx, t, *t_factor):
        return t * ctx.factor


@function(tensor(3), plain=lambda x: x * 6, call=lambda apply, x: apply(x, [1, 2], {"n": 3}))
class Containers(Batchable):
    @staticmethod
    def forward(x, factors, options):
        return x * sum(factors) * factors[1] * options["n"] / 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 6 * g, None, None

    @staticmethod
    def jvp(ctx, t, *others):
        return 6 * t


# Several inputs


@function(tensor(3), tensor(3), plain=torch.mul)
class Mul(Batchable):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        return tx * y + x * ty


@function(tensor(2, 3), tensor(3), plain=torch.add)
class AddBroadcast(Batchable):
    """The gradient of y has the broadcast shape, and must be summed to y's."""

    @staticmethod
    def forward(x, y):
        return x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g, g

    @staticmethod
    def jvp(ctx, tx, ty):
        return tx + ty


@function(tensor(2, 3), tensor(4, 3), tensor(4), plain=torch.nn.functional.linear)
class Linear(Batchable):
    """The example of torch's documentation, with needs_input_grad."""

    @staticmethod
    def forward(x, weight, bias):
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, g):
        x, weight, _ = ctx.saved_tensors
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = g @ weight
        if ctx.needs_input_grad[1]:
            gw = g.t() @ x
        if ctx.needs_input_grad[2]:
            gb = g.sum(0)
        return gx, gw, gb

    @staticmethod
    def jvp(ctx, tx, tw, tb):
        x, weight, _ = ctx.saved_tensors
        return tx @ weight.t() + x @ tw.t() + tb


@function(tensor(3), tensor(3), plain=lambda x, c: x * c.detach(), twice=False)
class WithoutGradientForOne(Batchable):
    @staticmethod
    def forward(x, c):
        return x * c

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[1], None

    @staticmethod
    def jvp(ctx, tx, tc):
        return tx * ctx.saved_tensors[1]


@function(tensor(2), tensor(3), tensor(1), plain=lambda *xs: torch.cat(xs))
class Concatenate(Batchable):
    @staticmethod
    def forward(*xs):
        return torch.cat(xs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.sizes = [len(x) for x in inputs]

    @staticmethod
    def backward(ctx, g):
        return g.split(ctx.sizes)

    @staticmethod
    def jvp(ctx, *ts):
        return torch.cat(ts)


@function(
    tensor(4),
    plain=lambda x: x[torch.tensor([2, 0, 2])],
    call=lambda apply, x: apply(x, torch.tensor([2, 0, 2])),
)
class Gather(Batchable):
    @staticmethod
    def forward(x, index):
        return x[index]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])
        ctx.size = inputs[0].shape

    @staticmethod
    def backward(ctx, g):
        return torch.zeros_like(g[:1]).expand(ctx.size).index_add(0, ctx.saved_tensors[0], g), None

    @staticmethod
    def jvp(ctx, t, t_index):
        return t[ctx.saved_tensors[0]]


@function(tensor(2, 3), tensor(3, 4), plain=torch.mm)
class MatMul(Batchable):
    @staticmethod
    def forward(x, y):
        return x @ y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g @ y.t(), x.t() @ g

    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        return tx @ y + x @ ty


@function(tensor(3), tensor(3), plain=lambda x, w: w * x / (x * x).mean().sqrt())
class RootMeanSquareNorm(Batchable):
    """Returns a statistic that backward reads, so that it can be differentiated twice."""

    @staticmethod
    def forward(x, w):
        scale = (x * x).mean().rsqrt()
        return w * x * scale, scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs, output[1])

    @staticmethod
    def backward(ctx, g, g_scale):
        x, w, scale = ctx.saved_tensors
        by_scale = (g * w * x).sum() + g_scale
        return g * w * scale - by_scale * scale**3 * x / x.numel(), g * x * scale

    @staticmethod
    def jvp(ctx, tx, tw):
        x, w, scale = ctx.saved_tensors
        t_scale = -(scale**3) * (x * tx).mean()
        return tw * x * scale + w * tx * scale + w * x * t_scale, t_scale


CASES[-1] = dataclasses.replace(CASES[-1], call=lambda apply, *xs: apply(*xs)[0])


@function(tensor(4), plain=lambda x: x.cumsum(0))
class CumulativeSum(Batchable):
    @staticmethod
    def forward(x):
        return x.cumsum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g.flip(0).cumsum(0).flip(0)

    @staticmethod
    def jvp(ctx, t):
        return t.cumsum(0)


@function(tensor(3), tensor(1), plain=lambda x, s: x * s)
class ScaleInPlaceOnDetached(Batchable):
    """Works on a detached copy, as third-party kernels do."""

    @staticmethod
    def forward(x, s):
        y = x.detach().clone()
        return y.mul_(s)

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * s, g * x

    @staticmethod
    def jvp(ctx, tx, ts):
        x, s = ctx.saved_tensors
        return tx * s + x * ts


# Several outputs


@function(tensor(3), plain=lambda x: (x.sin(), x.cos()))
class SinCos(Batchable):
    @staticmethod
    def forward(x):
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx, g_sin, g_cos):
        sin, cos = ctx.saved_tensors
        return g_sin * cos - g_cos * sin

    @staticmethod
    def jvp(ctx, t):
        sin, cos = ctx.saved_tensors
        return t * cos, -t * sin


@function(tensor(3), plain=lambda x: x.sinh(), call=lambda apply, x: apply(x)[0])
class SinhWithIntermediates(Batchable):
    """Returns intermediates, torch's documented way to differentiate twice."""

    @staticmethod
    def forward(x):
        expx, expnegx = torch.exp(x), torch.exp(-x)
        return (expx - expnegx) / 2, expx, expnegx

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output[1:])
        ctx.save_for_forward(*output[1:])

    @staticmethod
    def backward(ctx, g, g_exp, g_negexp):
        expx, expnegx = ctx.saved_tensors
        return g * (expx + expnegx) / 2 + g_exp * expx - g_negexp * expnegx

    @staticmethod
    def jvp(ctx, t):
        expx, expnegx = ctx.saved_tensors
        return t * (expx + expnegx) / 2, t * expx, -t * expnegx


@function(tensor(4), plain=lambda x: x.sort()[0], call=lambda apply, x: apply(x)[0])
class Sort(Batchable):
    """Its second output is an integer tensor without gradient."""

    @staticmethod
    def forward(x):
        values, index = x.sort()
        return values, index

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx, g, g_index):
        return g.gather(0, ctx.saved_tensors[0].argsort())

    @staticmethod
    def jvp(ctx, t):
        return t.gather(0, ctx.saved_tensors[0]), None


@function(tensor(3), plain=lambda x: x * x.detach(), call=lambda apply, x: torch.mul(*apply(x)))
class NonDifferentiableFloat(Batchable):
    @staticmethod
    def forward(x):
        return x.clone(), x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, g_other):
        return g

    @staticmethod
    def jvp(ctx, t):
        return t.clone(), None


@function(tensor(3), plain=lambda x: x * 5, call=lambda apply, x: apply(x)[0] * apply(x)[1])
class OutputThatIsNoTensor(Batchable):
    @staticmethod
    def forward(x):
        return x.clone(), 5

    @staticmethod
    def setup_context(ctx, inputs, output):
        assert output[1] == 5

    @staticmethod
    def backward(ctx, g, g_number):
        assert g_number is None
        return g

    @staticmethod
    def jvp(ctx, t):
        return t.clone(), None


# Functions, transforms and operators that call each other


@function(tensor(3), plain=lambda x: x**4)
class CallsAFunction(Batchable):
    @staticmethod
    def forward(x):
        return Square.apply(Square.apply(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 4 * g * Mul.apply(x, Square.apply(x))

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 4 * t * Mul.apply(x, Square.apply(x))


@function(tensor(3), plain=lambda x: 3 * x**2)
class TransformInForward(Batchable):
    @staticmethod
    def forward(x):
        return tl.vmap(tl.grad(lambda y: y**3))(x)

    @staticmethod
    def backward(ctx, g):
        return g * 6 * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, t):
        return t * 6 * ctx.saved_tensors[0]


@function(tensor(3), plain=lambda x: x.sin().exp())
class TransformInDerivatives(Batchable):
    @staticmethod
    def forward(x):
        return x.sin().exp()

    @staticmethod
    def backward(ctx, g):
        return tl.vjp(lambda x: x.sin().exp(), ctx.saved_tensors[0])[1](g)[0]

    @staticmethod
    def jvp(ctx, t):
        return tl.jvp(lambda x: x.sin().exp(), (ctx.saved_tensors[0],), (t,))[1]


# If backward and jvp call transforms, the tensors that they read from ctx are batched at the level
# of the vmap around the Function, not at that of the innermost layer.


def picked(x, i):
    """Returns x[i] for a batched i."""
    return (x * (torch.arange(3, device=x.device) == i)).sum()


@function(tensor(3), plain=lambda x: x**3)
class VmapInDerivatives(Batchable):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def backward(ctx, g):
        return tl.vmap(lambda g, i: g * 3 * picked(ctx.saved_tensors[0], i) ** 2)(
            g, torch.arange(3, device=g.device)
        )

    @staticmethod
    def jvp(ctx, t):
        return tl.vmap(lambda t, i: t * 3 * picked(ctx.saved_tensors[0], i) ** 2)(
            t, torch.arange(3, device=t.device)
        )


@function(tensor(3), plain=lambda x: x**3)
class GradInDerivatives(Batchable):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def backward(ctx, g):
        return g * tl.grad(lambda y: (3 * ctx.saved_tensors[0] ** 2 * y).sum())(g)

    @staticmethod
    def jvp(ctx, t):
        return t * tl.vmap(tl.grad(lambda y, x: y * 3 * x**2))(t, ctx.saved_tensors[0])


@function(tensor(3), plain=lambda x: x**3)
class VjpAndJvpInDerivatives(Batchable):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.x = inputs[0]

    @staticmethod
    def backward(ctx, g):
        return tl.vjp(lambda y: 3 * ctx.x**2 * y, g)[1](g)[0]

    @staticmethod
    def jvp(ctx, t):
        return tl.jvp(lambda y: 3 * ctx.x**2 * y, (t,), (t,))[1]


@function(tensor(3), plain=lambda x: x**3)
class ReadsLateAndTwice(Batchable):
    """Reads ctx under two layers that backward enters, and again after they have ended."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def backward(ctx, g):
        def read(i):
            return picked(ctx.saved_tensors[0], i) * picked(ctx.saved_tensors[0], i)

        squared = tl.vmap(tl.grad(lambda y, i: y * read(i)))(g, torch.arange(3, device=g.device))
        return g * (squared + 2 * ctx.saved_tensors[0] ** 2)

    @staticmethod
    def jvp(ctx, t):
        return ReadsLateAndTwice.backward(ctx, t)


@function(tensor(3), plain=lambda x: x**3)
class KeepsTensorsInLists(Batchable):
    """Stores lists on ctx; backward and jvp append to one of them."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.kept = [inputs[0], (output, 3)]
        ctx.seen = []

    @staticmethod
    def backward(ctx, g):
        x, (output, three) = ctx.kept
        ctx.seen.append(g)
        return three * ctx.seen[-1] * output / x

    @staticmethod
    def jvp(ctx, t):
        return KeepsTensorsInLists.backward(ctx, t)


# With a vmap staticmethod


@function(tensor(3), plain=lambda x: x**3, call=lambda apply, x: apply(x)[0])
class NumpyCube(Function):
    """The example of torch's documentation: NumPy computes; forward returns backward's operands."""

    @staticmethod
    def forward(x):
        values = x.numpy(force=True)
        return x.new_tensor(values**3), x.new_tensor(3 * values**2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output[1])
        ctx.save_for_forward(inputs[0], output[1])

    @staticmethod
    def backward(ctx, g, g_derivative):
        x, derivative = ctx.saved_tensors
        return g * derivative + g_derivative * 6 * x

    @staticmethod
    def jvp(ctx, t):
        x, derivative = ctx.saved_tensors
        return t * derivative, t * 6 * x

    @staticmethod
    def vmap(info, in_dims, x):
        return NumpyCube.apply(x), (in_dims[0], in_dims[0])


@function(tensor(3), tensor(3), plain=torch.mul)
class NumpyMul(Function):
    setup_context = staticmethod(saves_inputs)

    @staticmethod
    def forward(x, y):
        return x.new_tensor(x.numpy(force=True) * y.numpy(force=True))

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return NumpyMul.apply(g, y), NumpyMul.apply(g, x)

    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        return NumpyMul.apply(tx, y) + NumpyMul.apply(x, ty)

    @staticmethod
    def vmap(info, in_dims, x, y):
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.unsqueeze(0)
        y = y.movedim(in_dims[1], 0) if in_dims[1] is not None else y.unsqueeze(0)
        rank = max(x.dim(), y.dim())
        x = x.reshape(x.shape[0], *(1,) * (rank - x.dim()), *x.shape[1:])
        y = y.reshape(y.shape[0], *(1,) * (rank - y.dim()), *y.shape[1:])
        return NumpyMul.apply(x, y), 0


@function(
    tensor(4),
    plain=lambda x: x.sort()[0],
    call=lambda apply, x: apply(x, 0)[0],
)
class NumpySort(Function):
    @staticmethod
    def forward(x, dim):
        values = x.numpy(force=True)
        index = np.argsort(values, axis=dim)
        inverse = np.argsort(index, axis=dim)
        sorted_ = np.take_along_axis(values, index, axis=dim)
        return tuple(torch.tensor(each, device=x.device) for each in (sorted_, index, inverse))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])
        ctx.save_for_forward(*output[1:])
        ctx.dim = inputs[1]

    @staticmethod
    def backward(ctx, g, g_index, g_inverse):
        index, inverse = ctx.saved_tensors
        return NumpyTake.apply(g, inverse, index, ctx.dim), None

    @staticmethod
    def jvp(ctx, t, t_dim):
        index, inverse = ctx.saved_tensors
        return NumpyTake.apply(t, index, inverse, ctx.dim), None, None

    @staticmethod
    def vmap(info, in_dims, x, dim):
        x = x.movedim(in_dims[0], 0)
        return NumpySort.apply(x, dim if dim < 0 else dim + 1), (0, 0, 0)


@function(
    tensor(4),
    plain=lambda x: x[torch.tensor([3, 1, 0, 2])],
    call=lambda apply, x: apply(x, torch.tensor([3, 1, 0, 2]), torch.tensor([2, 1, 3, 0]), 0),
)
class NumpyTake(Function):
    @staticmethod
    def forward(x, index, inverse, dim):
        taken = np.take_along_axis(x.numpy(force=True), index.numpy(force=True), dim)
        return x.new_tensor(taken)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, index, inverse, ctx.dim = inputs
        ctx.save_for_backward(index, inverse)
        ctx.save_for_forward(index, inverse)

    @staticmethod
    def backward(ctx, g):
        index, inverse = ctx.saved_tensors
        return NumpyTake.apply(g, inverse, index, ctx.dim), None, None, None

    @staticmethod
    def jvp(ctx, t, *others):
        index, inverse = ctx.saved_tensors
        return NumpyTake.apply(t, index, inverse, ctx.dim)

    @staticmethod
    def vmap(info, in_dims, x, index, inverse, dim):
        def in_front(value, in_dim):
            if in_dim is None:
                return value.expand(info.batch_size, *value.shape)
            return value.movedim(in_dim, 0)

        x, index, inverse = map(in_front, (x, index, inverse), in_dims[:3])
        return NumpyTake.apply(x, index, inverse, dim if dim < 0 else dim + 1), 0


@function(tensor(3), plain=lambda x: x * 2)
class TransformInVmap(Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g * 2

    @staticmethod
    def jvp(ctx, t):
        return t * 2

    @staticmethod
    def vmap(info, in_dims, x):
        return tl.vmap(lambda x: TimesNumber.apply(x, 2), in_dims[0])(x), 0
