"""Control flow in a recording, where a predicate has no value yet."""
from typing import Any
import torch
from torch._subclasses import FakeTensor

def is_recorded(values):
    return isinstance(values, FakeTensor)

def cond(pred, true_fn, false_fn, operands):
    return torch.cond(pred, true_fn, false_fn, operands)
