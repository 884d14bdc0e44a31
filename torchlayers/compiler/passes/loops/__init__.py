"""Passes over the operands and bodies of control flow operators."""
