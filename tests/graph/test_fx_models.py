"""Five whole models: gradients as eager's, and no more bytes saved than AOTAutograd saves."""

import pytest
import torch

from benchmarks.graph_memory import PARTITIONERS, bytes_of_partitioner, ours
from benchmarks.graph_models import models

saves = pytest.mark.parametrize("save", PARTITIONERS)
every_model = pytest.mark.parametrize("make", models().values(), ids=models().keys())


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
    torch.testing.assert_close(model.buffers, buffers)  # written to, by batch norm
    cotangent = torch.randn_like(eager)
    torch.testing.assert_close(
        torch.autograd.grad(output, parameters, cotangent),
        torch.autograd.grad(eager, copies, cotangent),
    )


@saves
@every_model
def test_no_more_is_saved_than_the_partitioner_saves(make, save):
    torch.manual_seed(0)
    model = make()
    assert ours(model, save).saved_bytes <= bytes_of_partitioner(model, PARTITIONERS[save])
