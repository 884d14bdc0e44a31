"""Compiles graphs with PyTorch's Inductor."""
