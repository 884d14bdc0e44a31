"""Entries of a sparse matrix computed without the products that they are read from."""
