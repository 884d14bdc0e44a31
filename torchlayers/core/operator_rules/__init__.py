"""Derivatives of operators that are written in Python: users' and our own."""
