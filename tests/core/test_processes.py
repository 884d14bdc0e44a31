"""Forked and spawned processes, and DataLoader workers.

torch rejects a backward pass in a forked process once the autograd engine has started threads,
which other tests make it do. So tests that fork run in a freshly started process.
"""

import concurrent.futures
import multiprocessing
import os

import pytest
import torch
import torch.func
from torch.utils.data import DataLoader, Dataset

import torchlayers as tl

SPAWN = multiprocessing.get_context("spawn")
X = torch.tensor([0.5, 1.0, 2.0])


def first_derivatives(x):
    """3 x**2, through two layers."""
    return tl.vmap(tl.grad(lambda y: y**3))(x)


def in_a_new_process(function, *args):
    """Runs function(*args) in a fresh process; returns its result or exception."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        return pool.submit(function, *args).result()


@pytest.mark.sweep
def test_a_spawned_process():
    assert in_a_new_process(derivatives_as_list) == pytest.approx((3 * X**2).tolist())


def derivatives_as_list():
    return first_derivatives(X).tolist()


class Derivatives(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        assert tl.current_stack() == ()
        return first_derivatives(X + i)


def load(method, workers):
    loader = DataLoader(Derivatives(), num_workers=workers, multiprocessing_context=method)
    return torch.cat(list(loader)).tolist()


# A spawned worker imports everything again, so there is only one.
@pytest.mark.full
@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_data_loader(method, workers):
    expected = torch.stack([3 * (X + i) ** 2 for i in range(4)])
    torch.testing.assert_close(torch.tensor(in_a_new_process(load, method, workers)), expected)


TRANSFORMS = {
    "grad": lambda tf, f, x: tf.grad(lambda y: f(y).sum())(x),
    "jvp": lambda tf, f, x: tf.jvp(f, (x,), (x,))[1],
    "vmap": lambda tf, f, x: tf.vmap(f)(x),
}


def fork_inside(name):
    """Transforms x * x, forking inside; returns the result, and the stack and a level seen by the
    child."""
    reader, writer = os.pipe()

    def f(x):
        child = os.fork()
        if child == 0:
            try:
                kinds = [layer.kind for layer in tl.current_stack()]
                nested = tl.grad(lambda y: (x.sum() * y**3).sum())(torch.ones(()))
                level = torch._C._functorch.maybe_get_level(nested * x.sum())
                os.write(writer, f"{kinds} {level}".encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return x * x

    result = TRANSFORMS[name](tl, f, torch.ones(2, 3)).tolist()
    os.close(writer)
    return result, os.read(reader, 100).decode()


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_process_forked_inside_a_transform_goes_on_inside_it(name):
    result, child = in_a_new_process(fork_inside, name)
    expected = TRANSFORMS[name](torch.func, lambda x: x * x, torch.ones(2, 3))
    torch.testing.assert_close(torch.tensor(result), expected)
    assert child == f"['{name}'] 1"
