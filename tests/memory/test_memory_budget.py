"""memory_budget= of grad and the others."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl
from tests.memory.functions import FUNCTIONS, functions, layers, written
from tests.memory.nests import NESTS, ONE, V, W, X, assert_same, compare, nests
from torchlayers.errors import MemoryBudgetError, RecomputationError, TransformError
from torchlayers.memory import PeakMemory
from torchlayers.memory_budget import budgeted


def least(call):
    """The fewest bytes that a call of a transform with a budget can do with."""
    try:
        call(1)
    except MemoryBudgetError as error:
        return error.least
    return 1


def within_the_least(f):
    """The function within as little as it can do with, whatever is around it."""

    def wrapper(x):
        budget = least(lambda budget: budgeted("grad", f, budget)(x))
        return budgeted("grad", f, budget)(x)

    return wrapper


def within(budget):
    return lambda f: budgeted("grad", f, budget)


BUDGETS = {"all": within(1.0), "kept": within(10**9), "least": within_the_least}


@pytest.mark.parametrize("way", BUDGETS.values(), ids=BUDGETS)
@functions
@nests
def test_it_changes_nothing(nest, function, way):
    """Up to rounding: with a mode on, small operators are not computed in one pass."""
    compare(nest, way(function), function, exactly=False)
