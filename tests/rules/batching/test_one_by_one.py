"""Batched operators against one call a sample, where a batch dimension is easily mistaken.

Every run tries these; the sweeps over op_db and over the samples may try a part.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import torchlayers as tl


def numbers(*shape):
    count = torch.Size(shape).numel()
    return torch.linspace(-1, 1, count, dtype=torch.float64).cos().view(shape)


PLACES = torch.tensor([2, 0])
WEIGHT = numbers(3)


def by_weight(x):
    return tl.grad(lambda weight: (F.layer_norm(x, (3,), weight) * x).sum())(WEIGHT)


# A function of one sample, and the samples.
CALLS = {
    "a layer norm's weight, with rows": (by_weight, [numbers(4, 2, 3).sin()]),
    "a mean over all": (lambda x: x.mean(), [numbers(4, 2, 3)]),
    "matrices with a matrix": (torch.matmul, [numbers(4, 4, 2, 3), numbers(4, 3, 2)]),
    "a vector with matrices": (torch.matmul, [numbers(4, 3), numbers(4, 4, 3, 2)]),
    "indices that are adjacent": (lambda x: x[:, PLACES, PLACES], [numbers(4, 4, 3, 3)]),
    "indices that are apart": (lambda x: x[PLACES, :, PLACES], [numbers(4, 3, 4, 3)]),
    "a product by columns": (lambda x: x.prod(0), [numbers(4, 3, 2)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_batch_is_computed_as_its_samples_are(name):
    function, batches = CALLS[name]
    one_by_one = [function(*sample) for sample in zip(*batches, strict=True)]
    assert_close(tl.vmap(function)(*batches), torch.stack(one_by_one))
