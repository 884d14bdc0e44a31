"""Graphs compiled by torch's inductor."""
