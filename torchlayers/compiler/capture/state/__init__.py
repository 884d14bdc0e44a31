"""The Python state that a captured function reads (guards) and writes (side effects)."""
