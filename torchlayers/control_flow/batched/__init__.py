"""Control flow with batched predicates."""
