"""Checks of derivatives and of rules, for tests: what torchlayers.testing has."""

from torchlayers.transforms.testing.gradient_check import check_grads as check_grads

__all__ = ["check_grads"]
