"""Five whole models: gradients equal eager's, and AOTAutograd saves no fewer bytes."""

import pytest
import torch
import torch.func
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers
from benchmarks.graph_memory import PARTITIONERS, bytes_of_partitioner, ours
from benchmarks.graph_models import models
from torchlayers.graph import differentiate

saves = pytest.mark.parametrize("save", PARTITIONERS)
every_model = pytest.mark.parametrize("make", models().values(), ids=models().keys())


@pytest.mark.sweep
@saves
@every_model
def test_gradients_are_eagers(make, save):
    torch.manual_seed(0)
    model = make()
    copies = [p.detach().clone().requires_grad_() for p in model.parameters]
    buffers = [buffer.clone() for buffer in model.buffers]
    eager = model.function(*model.inputs, *copies, *buffers)

    parameters = [p.requires_grad_() for p in model.parameters]
    held = [] if model.held else [*parameters, *model.buffers]
    output = ours(model, save)(*model.inputs, *held)

    torch.testing.assert_close(output, eager)
    torch.testing.assert_close(model.buffers, buffers)  # batch norm's running statistics
    cotangent = torch.randn_like(eager)
    torch.testing.assert_close(
        torch.autograd.grad(output, parameters, cotangent),
        torch.autograd.grad(eager, copies, cotangent),
    )


@pytest.mark.sweep(one_in=8)
@saves
@every_model
def test_no_more_is_saved_than_the_partitioner_saves(make, save):
    torch.manual_seed(0)
    model = make()
    assert ours(model, save).saved_bytes <= bytes_of_partitioner(model, PARTITIONERS[save])


@pytest.mark.sweep
@pytest.mark.parametrize("library", [torchlayers, torch.func], ids=["torchlayers", "torch.func"])
@pytest.mark.parametrize("name", ["MLP", "transformer", "ensemble of 5"])
def test_under_transforms_as_the_model_itself(name, library):
    torch.manual_seed(0)
    model = models()[name]()
    (inputs,), parameters = model.inputs, [p.detach() for p in model.parameters]
    places = range(1, 1 + len(parameters))
    recorded = make_fx(model.function)(inputs, *parameters)
    batch = torch.stack([inputs, inputs.flip(0), inputs.roll(1, 0)])

    def calls(function):
        def loss(parameters, inputs):
            return function(inputs, *parameters).pow(2).mean()

        gradient = library.grad(loss)
        by_sample = library.vmap(gradient, (None, 0))(parameters, batch)
        hvp = library.jvp(lambda p: gradient(p, inputs), (parameters,), (parameters,))[1]
        last = library.vmap(lambda x: function(x, *parameters), in_dims=1)(batch.transpose(0, 1))
        return by_sample, hvp, last

    expected = calls(model.function)
    for save in PARTITIONERS:
        found = calls(differentiate(recorded, argnums=places, save=save))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
