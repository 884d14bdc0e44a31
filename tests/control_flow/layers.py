"""Layers of the user's, for control flow captured inside them."""

import torch

import torchlayers as tl


class Bounds(tl.Layer):
    """Bounds of |x|; a constant is its own."""

    def inputs(self, x, bounds):
        return (self.tensor(x, bounds),), {}

    def lift(self, value):
        return self.tensor(value, value.abs())

    def outputs(self, result):
        return result.value, result.parts


@Bounds.rule(torch.ops.aten.mul.Tensor)
def product(layer, op, x, y):
    return layer.tensor(op(x.value, y.value), x.parts * y.parts)


@Bounds.rule(torch.ops.aten.add.Tensor, "structural", torch.ops.aten.sum)
def linear(layer, op, *args, **kwargs):
    values = layer.send_down(op, args, kwargs)
    bounds = layer.send_down(op, args, kwargs, read=lambda x: x.parts)
    if isinstance(values, torch.Tensor):
        return layer.tensor(values, bounds)
    return [layer.tensor(*each) for each in zip(values, bounds, strict=True)]


class Names(tl.Layer):
    """The names of the inputs that a value depends on."""

    def inputs(self, **named):
        return [self.tensor(x, {name}) for name, x in named.items()], {}

    def outputs(self, result):
        return result.value, sorted(result.parts)


@Names.rule("any")
def union(layer, op, *args, **kwargs):
    tensors = [x for x in tl.tree.leaves((args, kwargs)) if isinstance(x, tl.LayerTensor)]
    names = set().union(*(x.parts or () for x in tensors))
    values = layer.send_down(op, args, kwargs)
    return tl.tree.map_tensors(lambda value: layer.tensor(value, names), values)


class Log(tl.Layer):
    """A list of the operators that its rule was called for."""

    def __init__(self):
        self.ops = []
        self.count = 0

    def inputs(self, x):
        return (self.tensor(x),), {}


@Log.rule("any")
def logged(layer, op, *args, **kwargs):
    layer.ops.append(op)
    layer.count += 1
    return tl.tree.map_tensors(layer.tensor, layer.send_down(op, args, kwargs))


class Count(tl.Layer):
    """Counts products, also those without a tensor of the layer."""

    def __init__(self):
        self.products = 0

    def process(self, op, args, kwargs):
        self.products += op is torch.ops.aten.mul.Tensor
        return super().process(op, args, kwargs)
