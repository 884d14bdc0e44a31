"""A layer for tests: bounds of a function's results, from bounds of its argument."""

import torch

import torchlayers as tl

aten = torch.ops.aten


class Interval(tl.Layer):
    """parts are (lower, upper)."""

    def inputs(self, lower, upper):
        return (self.tensor((lower + upper) / 2, (lower, upper)),), {}

    def lift(self, value):
        return self.tensor(value, (value, value))

    def outputs(self, result):
        return tl.tree.map_tensors(lambda leaf: leaf.parts, result)


@Interval.rule(aten.mul.Tensor)
def mul(layer, op, x, y):
    ends = torch.broadcast_tensors(*(a * b for a in x.parts for b in y.parts))
    ends = torch.stack(ends)
    return layer.tensor(x.value * y.value, (ends.amin(0), ends.amax(0)))


@Interval.rule(aten.add.Tensor)
def add(layer, op, x, y, *, alpha=1):
    (a, b), (c, d) = x.parts, y.parts
    ends = (c, d) if alpha >= 0 else (d, c)
    bounds = a + alpha * ends[0], b + alpha * ends[1]
    return layer.tensor(op(x.value, y.value, alpha=alpha), bounds)


@Interval.rule(aten.exp, aten.tanh, aten.sum, "structural")
def increasing(layer, op, *args, **kwargs):
    lower = layer.send_down(op, args, kwargs, read=lambda x: x.parts[0])
    upper = layer.send_down(op, args, kwargs, read=lambda x: x.parts[1])
    return layer.tensor(layer.send_down(op, args, kwargs), (lower, upper))


@Interval.rule("constant")
def of_values(layer, op, *args, **kwargs):
    return layer.send_down(op, args, kwargs)
