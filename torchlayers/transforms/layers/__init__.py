"""Layers written in Python: the base class, the tensors that carry a layer's parts, and rules."""
