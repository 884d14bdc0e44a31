"""nn.LSTM, nn.GRU and nn.RNN under vmap, alone and nested with derivatives."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

import torchlayers as tl
from tests.in_place_under_vmap.reference import gradient, loop
from tests.support.traced_steps import traced_steps

KINDS = [nn.LSTM, nn.GRU, nn.RNN]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep, both ways": {"num_layers": 2, "bidirectional": True},
    "batch first": {"batch_first": True},
    "without biases": {"bias": False},
}
DTYPES = [torch.float32, torch.float64]  # torch has a separate kernel for float32


def network(kind: type[nn.RNNBase], dtype: torch.dtype, **settings: Any) -> nn.RNNBase:
    torch.manual_seed(0)
    return kind(3, 4, dtype=dtype, **settings).requires_grad_(False)


def sequences(*sizes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(sizes).numel(), dtype=dtype).view(sizes).sin()


def output_of(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x)[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_by_itself(
    kind: type[nn.RNNBase], settings: dict[str, Any], dtype: torch.dtype
) -> None:
    f = output_of(network(kind, dtype, **settings))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # about a loop over the samples
        for shape in ((2, 5, 3), (2, 5, 2, 3)):
            x = sequences(*shape, dtype=dtype)
            assert_close(tl.vmap(f)(x), loop(f, x))
            assert_close(tl.vmap(f, in_dims=1)(x.transpose(0, 1)), loop(f, x))
            assert_close(tl.vmap(tl.vmap(f))(x[None])[0], loop(f, x))


@pytest.mark.parametrize("kind", KINDS)
def test_final_states(kind: type[nn.RNNBase]) -> None:
    module = network(kind, torch.float32, bidirectional=True)

    def f(x: Tensor) -> Any:
        final = module(x)[1]
        return torch.stack(final) if isinstance(final, tuple) else final

    x = sequences(2, 5, 3, dtype=torch.float32)
    assert_close(tl.vmap(f)(x), loop(f, x))


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_packed(kind: type[nn.RNNBase], is_sorted: bool) -> None:
    module = network(kind, torch.float64, bidirectional=True)
    lengths = torch.tensor([5, 3] if is_sorted else [3, 5])

    def f(x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=is_sorted)
        return pad_packed_sequence(module(packed)[0])[0]

    x = sequences(2, 5, 2, 3)
    assert_close(tl.vmap(f)(x), loop(f, x))
    number = lambda x: f(x).sin().sum()  # noqa: E731
    expected = loop(gradient(number), x)
    assert_close(tl.vmap(tl.grad(number))(x), expected)
    assert_close(tl.grad(lambda x: tl.vmap(number)(x).sum())(x), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives(kind: type[nn.RNNBase]) -> None:
    f = output_of(network(kind, torch.float64, num_layers=2))
    number = lambda x: f(x).sin().sum()  # noqa: E731
    x = sequences(2, 3, 3)
    expected = loop(gradient(number), x)
    assert_close(tl.vmap(tl.grad(number))(x), expected)
    assert_close(tl.grad(lambda x: tl.vmap(number)(x).sum())(x), expected)
    slopes = tl.vmap(lambda x: tl.jvp(number, (x,), (x,))[1])(x)
    assert_close(slopes, (expected * x).sum((1, 2)))
    assert_close(tl.jvp(tl.vmap(number), (x,), (x,))[1], slopes)
    hessians = loop(lambda x: torch.autograd.functional.hessian(number, x), x)
    assert_close(tl.vmap(tl.hessian(number))(x), hessians)


def test_torchs_kernel_of_an_lstm_has_every_derivative() -> None:
    """It is decomposed, except for a single grad."""
    single = network(nn.LSTM, torch.float32, num_layers=2, bidirectional=True)
    double = copy.deepcopy(single).double()
    number = lambda m: lambda x: m(x)[0].sin().sum()  # noqa: E731
    x = sequences(4, 3)
    wanted = tl.hessian(number(double))(x).float()
    assert_close(tl.hessian(number(single))(x.float()), wanted, rtol=1e-3, atol=1e-5)
    tangent = tl.jvp(number(single), (x.float(),), (x.float(),))[1]
    assert_close(tangent, (tl.grad(number(double))(x) * x).sum().float(), rtol=1e-4, atol=1e-5)
    with traced_steps() as events:
        alone = tl.grad(number(single))(x.float())
    assert "aten::mkldnn_rnn_layer" in {event.op for event in events}
    assert_close(alone, tl.grad(number(double))(x).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_and_gradients_of_each_sample(
    kind: type[nn.RNNBase], dtype: torch.dtype
) -> None:
    module = network(kind, dtype)
    params = dict(module.named_parameters())
    both = {name: torch.stack([p, p * 0.5]) for name, p in params.items()}
    x = sequences(2, 5, 3, dtype=dtype)

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return tl.functional_call(module, params, (x,))[0].sin().sum()

    members = [{name: p[i] for name, p in both.items()} for i in range(2)]
    expected = torch.stack([loss(member, x[0]) for member in members])
    assert_close(tl.vmap(loss, (0, None))(both, x[0]), expected)
    of_samples = tl.vmap(tl.grad(loss), (None, 0))(params, x)
    for name, of_all in of_samples.items():
        assert_close(of_all, torch.stack([tl.grad(loss)(params, each)[name] for each in x]))


def test_dropout_between_layers_follows_the_randomness() -> None:
    module = network(nn.GRU, torch.float64, num_layers=2, dropout=0.5)
    f, x = output_of(module), sequences(1, 5, 3).expand(3, 5, 3)
    same = tl.vmap(f, randomness="same")(x)
    assert_close(same[0], same[1])
    different = tl.vmap(f, randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        tl.vmap(f)(x)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind: type[nn.RNNCellBase]) -> None:
    torch.manual_seed(0)
    cell = kind(3, 4, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        state = cell(x)
        return torch.stack(state) if isinstance(state, tuple) else state

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(tl.vmap(f)(sequences(5, 3)), loop(f, sequences(5, 3)))
