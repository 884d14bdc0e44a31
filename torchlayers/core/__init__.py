"""Foundations: pytrees, errors, devices, the layer stack, tracing state, differences between torch
versions, and user-defined rules.

Importing any of it replaces methods of tensors (printing, copying, pickling) before another room
reads them, and registers the dispatch keys with torch's higher-order operators.
"""

from torchlayers.core import higher_order_ops as higher_order_ops
from torchlayers.core import tensor_copies as tensor_copies
from torchlayers.core import tensor_printing as tensor_printing
