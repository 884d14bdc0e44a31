"""A Function that reads a tensor which it is given in an object."""

from torch.autograd import Function


class Holder:
    """An object that is opaque to pytrees."""

    def __init__(self, tensor):
        self.tensor = tensor


class Weigh(Function):
    """Returns x * weights, with the weights in an object."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, holder):
        return x * holder.tensor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.holder = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.holder.tensor, None

    @staticmethod
    def jvp(ctx, t, _):
        return t * ctx.holder.tensor
