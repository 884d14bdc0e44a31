"""Foundations: pytrees, errors, devices, the layer stack, tracing state, differences between torch
versions, and user-defined rules.
"""
