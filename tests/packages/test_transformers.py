"""transformers' models and their outputs; ModelOutput, a pytree, does not allow None for a tensor.

The models are tiny, with random weights; nothing is downloaded.
"""

from dataclasses import dataclass

import pytest
import torch

import torchlayers as tl
from tests.packages import package
from tests.support.calls import agree

transformers = package("transformers")
ModelOutput = package("transformers.utils").ModelOutput

X = torch.linspace(-1, 1, 12).view(3, 4)
WIDE = torch.linspace(-1, 1, 600)  # large enough for a Jacobian that is computed in chunks
CONFIG = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "attn_implementation": "eager",
}
TOKENS = torch.arange(10).view(2, 5)


@dataclass
class Output(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None


def output_of(x):
    return Output(loss=x.square(), logits=x.sin())


def logits_of(x):
    return Output(logits=x.sin())


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**CONFIG), add_pooling_layer=False)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("func", [output_of, logits_of], ids=["all fields", "one field"])
@pytest.mark.parametrize("transform", ["vmap", "jacrev", "jacfwd"])
def test_a_model_output_through(transform, func):
    agree(lambda lib: getattr(lib, transform)(func)(X))


@pytest.mark.parametrize("func", [output_of, logits_of], ids=["all fields", "one field"])
def test_a_jacobian_in_parts(func):
    agree(lambda lib: lib.jacrev(func)(WIDE))


def test_a_model_output_in_jvp_and_vjp():
    agree(lambda lib: lib.jvp(output_of, (X,), (X,)))
    agree(lambda lib: lib.vjp(output_of, X)[1](output_of(X)))


def embeddings(model):
    return model.get_input_embeddings()(TOKENS)


def hidden(lib, model, params):
    def run(params, embedded):
        call = lib.functional_call(model, params, (), {"inputs_embeds": embedded})
        return call.last_hidden_state

    return run


def test_gradients_of_samples(bert):
    params = dict(bert.named_parameters())

    def gradients(lib):
        run = hidden(lib, bert, params)
        loss = lambda params, x: run(params, x[None]).square().mean()  # noqa: E731
        return lib.vmap(lib.grad(loss), (None, 0))(params, embeddings(bert))

    agree(gradients)


def test_jvp_of_a_whole_model_output(bert):
    x = embeddings(bert)
    agree(
        lambda lib: lib.jvp(
            lambda x: bert(inputs_embeds=x, output_hidden_states=True), (x,), (x.cos(),)
        )
    )


def test_the_jacobian_of_a_model_s_output(bert):
    x = embeddings(bert)[:1]
    jacobian = agree(lambda lib: lib.jacrev(lambda x: bert(inputs_embeds=x))(x))
    columns = tl.jacfwd(lambda x: bert(inputs_embeds=x))(x)
    torch.testing.assert_close(jacobian.last_hidden_state, columns.last_hidden_state)


def test_an_ensemble_of_models(bert):
    copies = [
        transformers.BertModel(transformers.BertConfig(**CONFIG), add_pooling_layer=False).eval()
        for _ in range(2)
    ]
    params = {
        name: torch.stack([dict(copy.named_parameters())[name].detach() for copy in copies])
        for name, _ in bert.named_parameters()
    }
    x = embeddings(bert)
    together = agree(lambda lib: lib.vmap(hidden(lib, bert, params), (0, None))(params, x))
    alone = torch.stack([copy(inputs_embeds=x).last_hidden_state for copy in copies])
    torch.testing.assert_close(together, alone)
