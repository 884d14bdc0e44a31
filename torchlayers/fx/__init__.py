"""Shared utilities for FX graphs: nodes, custom operators, operator replacements, C++ replay."""
