"""Pytrees, errors, devices, the stack, tracing state, versions of torch, and rules of the user's
own.
"""
