"""Foundations: pytrees, errors, devices, the layer stack, tracing state, differences between torch
versions, and user-defined rules.

Importing any of it registers the dispatch keys with torch's higher-order operators.
"""

from torchlayers.core import higher_order_ops as higher_order_ops
