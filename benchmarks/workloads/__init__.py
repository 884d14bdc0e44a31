"""Whole workloads, each by every peer that a user might pick instead: ``-m benchmarks.workloads``.

A program is written once, over a module of transforms and a module of operators, and runs on
torch.func, torchlayers and JAX. The raw engine does the same work on plain autograd, by hand.
"""
