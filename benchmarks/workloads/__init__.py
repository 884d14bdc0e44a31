"""Whole workloads, run by every peer that a user might choose: ``-m benchmarks.workloads``.

A program is written once, with a module of transforms and a module of operators as parameters, and
runs on torch.func, torchlayers and JAX. The raw engine does the same work by plain autograd, with
hand-written batching.
"""
