"""Sparse Jacobians and Hessians: patterns, their colouring, and derivatives by colours."""
