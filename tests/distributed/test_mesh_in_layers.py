"""vmap over a mesh dimension inside other layers, against vmap on one process."""

import torch

import torchlayers as tl
from tests.distributed.nests import close
from tests.distributed.processes import case, over_ranks
from tests.distributed.test_vmap import mesh, numbers


def written(x):
    y = x.clone()
    y.mul_(2)
    return y.sin() * x


def along(f):
    return lambda x: tl.jet(f, (x,), ((torch.ones_like(x),),))[1][0]


LAYERS = {
    "functionalize": tl.functionalize,
    "functionalize of grad": lambda f: tl.functionalize(tl.grad(lambda x: f(x).sum())),
    "grad of functionalize": lambda f: tl.grad(lambda x: tl.functionalize(f)(x).sum()),
    "jet": along,
    "laplacian": lambda f: tl.laplacian(lambda x: f(x).sum()),
}


@case
def each_layer_takes_a_vmap_over_ranks():
    x = numbers(5, 3)
    spread = tl.vmap(written, mesh=mesh(), out="full")
    for layer in LAYERS.values():
        close(layer(spread)(x), layer(tl.vmap(written))(x))
    by_placement = tl.functionalize(tl.vmap(written, mesh=mesh()))(x)
    close(by_placement.full_tensor(), written(x))


test_over_ranks = over_ranks(__name__)
