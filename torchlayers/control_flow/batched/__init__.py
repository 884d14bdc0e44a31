"""Control flow whose predicates are batched."""
