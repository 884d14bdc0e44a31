"""Tensors: their memory, shape and versions, the layers around them, indexed reads and writes."""
