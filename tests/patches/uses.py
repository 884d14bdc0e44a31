"""Every way in which a program can make torchlayers replace something of torch, by name."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchlayers as tl

X = torch.linspace(0.1, 1.0, 4)
BATCH = torch.linspace(0.1, 1.0, 12).reshape(3, 4)
TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Any]], Any]] = {
    "grad": lambda f: tl.grad(f)(X),
    "grad_and_value": lambda f: tl.grad_and_value(f)(X),
    "vmap": lambda f: tl.vmap(f)(BATCH),
    "vmap in chunks": lambda f: tl.vmap(f, chunk_size=2)(BATCH),
    "jvp": lambda f: tl.jvp(f, (X,), (X,)),
    "vjp": lambda f: tl.vjp(f, X)[1](torch.tensor(1.0)),
    "linearize": lambda f: tl.linearize(f, X)[1](X),
    "jacrev": lambda f: tl.jacrev(f)(X),
    "jacfwd": lambda f: tl.jacfwd(f)(X),
    "hessian": lambda f: tl.hessian(f)(X),
    "hvp": lambda f: tl.hvp(f, (X,), (X,)),
    "functionalize": lambda f: tl.functionalize(f)(X),
    "jet": lambda f: tl.jet(f, (X,), ((X, X),)),
    "laplacian": lambda f: tl.laplacian(f)(X),
    "hessian_diagonal": lambda f: tl.hessian_diagonal(f)(X),
    "clipped_grad": lambda f: tl.clipped_grad(lambda p, x: f(p * x), 1.0)(X, BATCH),
    "sparsity": lambda f: tl.sparsity(f, X),
    "seeded": lambda f: tl.seeded(f, tl.random.key(7))(X),
    "checkpoint": lambda f: tl.grad(tl.checkpoint(f))(X),
    "scan": lambda f: tl.grad(lambda x: tl.scan(lambda c, x: (c + f(x), c), x.sum(), x)[0])(X),
    "make_graph": lambda f: tl.make_graph(f)(X),
    "eval_shape": lambda f: tl.eval_shape(f, X),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f))(BATCH),
}


def total(x: Tensor) -> Tensor:
    return (x * x).sin().sum()


def fails(x: Tensor) -> Tensor:
    raise ZeroDivisionError(x.dim())


class Old(torch.autograd.Function):
    """An old-style Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g + 1)
    return y.sum()


def solved(x: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    (g,) = torch.autograd.grad((leaf**2).sum(), leaf)
    return (g * x).sum()


def written(x: Tensor) -> Tensor:
    y = torch.zeros(4)
    y[1] = x[0]
    str(y)
    return y.sum()


def call_module(module: nn.Module, x: Tensor) -> Any:
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    return tl.functional_call(module, parameters, (x,))


def module_with_hooks(x: Tensor) -> Any:
    module = nn.Linear(4, 1)
    module.register_full_backward_hook(lambda *_: None)
    return module(x).sum()


def in_cond(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).sum()


def in_flex_attention(x: Tensor) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    q = x.expand(1, 1, 4, 4)
    return flex_attention(q, q, q).sum()


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "copy": lambda: tl.grad(lambda x: copy.deepcopy(x).sum() + copy.copy(x).sum())(X),
    "an old-style Function": lambda: tl.grad(lambda x: Old.apply(x).sum())(X),
    "a hook": lambda: tl.grad(hooked)(X),
    "a gradient inside": lambda: tl.grad(solved)(X),
    "a hook of a module": lambda: tl.grad(module_with_hooks)(X),
    "a write": lambda: tl.vmap(written)(BATCH),
    "a batched index": lambda: tl.vmap(lambda i: X[i])(torch.arange(3)),
    "functional_call": lambda: call_module(Checkpointed(), X),
    "torch.utils.checkpoint": lambda: tl.grad(
        lambda x: torch.utils.checkpoint.checkpoint(total, x, use_reentrant=True)
    )(X),
    "torch.cond": lambda: tl.grad(in_cond)(X),
    "flex_attention": lambda: tl.grad(in_flex_attention)(X),
    "install": lambda: (tl.install(), tl.uninstall()),
}
