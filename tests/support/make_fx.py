"""torch's make_fx, which records detach as detach with every version of torch."""

from torch.fx.experimental import proxy_tensor


def make_fx(function, **options):
    """2.15 records alias, which lets gradients through, unless decompositions are passed."""
    return proxy_tensor.make_fx(function, decomposition_table={}, **options)
