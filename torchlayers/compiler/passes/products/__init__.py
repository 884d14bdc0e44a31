"""Passes that multiply less: products of matrices shared, joined, reordered or contracted."""
