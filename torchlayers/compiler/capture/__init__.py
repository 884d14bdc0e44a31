"""Captures a function as a graph of the plain operators that reach the bottom of the stack."""
