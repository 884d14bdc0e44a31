"""captum's attributions, compiled: they set requires_grad of their inputs and call autograd."""

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.packages import package

captum = package("captum.attr")

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
INPUTS = [torch.randn(5, 4, dtype=torch.float64) for _ in range(3)]
METHODS = {
    "Saliency": lambda x: captum.Saliency(NET).attribute(x, target=1),
    "InputXGradient": lambda x: captum.InputXGradient(NET).attribute(x, target=1),
    "IntegratedGradients": lambda x: captum.IntegratedGradients(NET).attribute(
        x, target=1, n_steps=8
    ),
    "FeatureAblation": lambda x: captum.FeatureAblation(NET).attribute(x, target=1),
    "LayerActivation": lambda x: captum.LayerActivation(NET, NET[0]).attribute(x),
}


@pytest.mark.parametrize("method", METHODS)
def test_attributions(method):
    attribute = METHODS[method]
    compiled = tl.compile(attribute, backend="replay")
    for x in INPUTS * 2:
        torch.testing.assert_close(compiled(x), attribute(x))
    assert not compiled.report().as_it_is
