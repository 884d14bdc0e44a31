"""Graphs as data: what is rebuilt from a description is the same graph."""

import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import torchlayers as tl
from benchmarks.workloads import torch_operators
from benchmarks.workloads.catalogue import small
from torchlayers.compiler.inductor.compile_job import job_of, key_of
from torchlayers.compiler.inductor.graph_description import (
    NotDescribableError,
    build_graph,
    describe_graph,
)
from torchlayers.core import pytree
from torchlayers.fx.program import replay

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def rebuilt(graph):
    return build_graph(pickle.loads(pickle.dumps(describe_graph(graph))))


@pytest.mark.sweep
@pytest.mark.parametrize("workload", small(), ids=str)
def test_a_rebuilt_workload_computes_the_same(workload):
    f = workload.program(tl, torch_operators)
    graph = tl.make_graph(f)(*workload.arguments)
    again = rebuilt(graph)
    assert describe_graph(again) == describe_graph(graph)
    tensors = [leaf for leaf in pytree.leaves(workload.arguments) if isinstance(leaf, torch.Tensor)]
    if len(tensors) == len(graph.graph.find_nodes(op="placeholder")):  # nothing is captured
        pairs = zip(replay(graph)([*tensors]), replay(again)([*tensors]), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def looped(x):
    def step(carry, row):
        carry = tl.cond(row.sum() > 0, lambda c: c.sin() + row, lambda c: c * 2, carry)
        return carry, carry.sum()

    return tl.scan(step, x[0], x)


PROGRAMS = {
    "control flow": looped,
    "a complex number": lambda x: (x + 2j).conj().sum(0),
    "constants": lambda x: (x.to(torch.float64).clamp(-0.0, float("inf")) ** True, x.flip([-1])),
    "slices of several results": lambda x: x.split([1, 2], 1)[1][:, ::2].topk(1).indices,
    "a draw": lambda x: nn.functional.dropout(x, 0.5),
    "a write": lambda x: x.add_(1),
}


@pytest.mark.parametrize("f", PROGRAMS.values(), ids=PROGRAMS)
def test_a_rebuilt_graph_computes_the_same(f):
    graph = tl.make_graph(f)(X)
    again = rebuilt(graph)
    assert describe_graph(again) == describe_graph(graph)
    results = []
    for each in (graph, again):
        torch.manual_seed(0)
        results.append([*replay(each)([X.clone()])])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def generator_of_its_own():
    generator = torch.Generator()
    return lambda x: x + torch.randn(3, generator=generator)


UNKNOWN = {
    "a generator": (generator_of_its_own(), "a Generator"),
    "a sparse tensor": (lambda x: x.to_sparse() * 2, "torch.sparse_coo"),
}


@pytest.mark.parametrize(("f", "why"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_another_process_can_not_have_is_refused(f, why):
    with pytest.raises(NotDescribableError, match=why):
        describe_graph(tl.make_graph(f)(X))


def test_operators_that_are_not_registered_are_refused():
    graph = describe_graph(tl.make_graph(torch.sin)(X))
    nodes = [
        node._replace(target=node.target._replace(name="nowhere::sin"))
        if node.op == "call_function"
        else node
        for node in graph.nodes
    ]
    with pytest.raises(NotDescribableError, match="nowhere::sin is not registered"):
        build_graph(graph._replace(nodes=nodes))


def test_options_that_can_not_be_pickled_are_refused():
    job = job_of(tl.make_graph(torch.sin)(X), 1, {"post_grad_custom_pre_pass": lambda graph: None})
    with pytest.raises(NotDescribableError, match="an option can't be pickled"):
        job.encoded()


KEY = """
import torch, torchlayers as tl
from torchlayers.compiler.inductor.compile_job import job_of, key_of
f = tl.vmap(tl.grad(lambda x: (x.sin() * 0.1).sum()))
print(key_of(job_of(tl.make_graph(f)(torch.ones(2, 3)), 1, None).encoded()))
"""


@pytest.mark.full  # several processes, 12 s
def test_keys_are_the_same_in_every_process():
    """The cache on disk needs that; and other settings need other keys."""
    f = tl.vmap(tl.grad(lambda x: (x.sin() * 0.1).sum()))
    graph = tl.make_graph(f)(torch.ones(2, 3))
    here = key_of(job_of(graph, 1, None).encoded())
    there = subprocess.run(
        [sys.executable, "-c", KEY], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert here == there
    others = [
        job_of(graph, 2, None),
        job_of(graph, 1, {"cpp.min_chunk_size": 7}),
        job_of(tl.make_graph(f)(torch.ones(3, 3)), 1, None),
    ]
    with torch._inductor.config.patch({"cpp.min_chunk_size": 7}):
        others.append(job_of(graph, 1, None))
    torch.compile(torch.sin)(torch.ones(3))  # sets, and leaves behind, settings of its own
    assert key_of(job_of(graph, 1, None).encoded()) == here
    assert len({here, *(key_of(job.encoded()) for job in others)}) == 5
