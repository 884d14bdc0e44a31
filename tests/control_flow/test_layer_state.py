"""Layers that change in Python: loops inside them are unrolled when they are captured."""

import pytest
import torch

import torchlayers as tl
from tests.control_flow.layers import Count, Log
from tests.control_flow.rolled_programs import STEPS, XS, X, scans


def products(x):
    return tl.scan(lambda c, y: (c * y, None), x, XS)[0]


def test_layer_that_processes_every_operator_sees_each_step():
    count = Count()

    def f(x):
        with count:
            return products(x)

    assert scans(tl.make_graph(f)(X)) == 0
    assert count.products == STEPS


@pytest.mark.parametrize("of", [products, lambda x: tl.cond(x.sum() > 0, torch.sin, torch.exp, x)])
def test_rule_that_changes_the_layer_is_called_once_for_each_operator(of):
    log, plain = Log(), Log()
    ops, before = log.ops, log.count

    def f(x):
        with log:
            return log.apply(of, log.tensor(x)).value

    graph = tl.make_graph(f)(X)
    assert log.ops is ops
    assert len(ops) == log.count - before
    if of is products:
        assert scans(graph) == 0
        with plain:
            plain.apply(of, plain.tensor(X))
        assert len(ops) == len(plain.ops)
