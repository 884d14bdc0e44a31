"""Misuses shared by several files."""

import torch
import torch.func

X = torch.tensor([0.5, 1.0, 2.0])
ONE = torch.tensor(1.0)
BATCH = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def loss(x, y):
    return (x * y).sum()


def batched(f):
    return lambda tf: tf.vmap(f)(BATCH)


class WithoutSetupContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class WithBackwardOnly(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g * 2


def kept(tf, x):
    """A tensor that escapes from a vmap."""
    kept = []
    tf.vmap(lambda sample: kept.append(sample) or sample)(x)
    return kept[0]


SHOULD_BE_A_PAIR = (
    "the function's result should be a tuple: (output, aux) if has_aux is True, but it is"
)


def no_rule(op):
    return (
        f"torchlayers: vmap (level 1): Batching rule not implemented for {op}. Loop over the "
        "samples and torch.stack the results, or use other operators."
    )
