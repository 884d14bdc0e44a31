"""Reverse-mode differentiation of FX graphs."""
