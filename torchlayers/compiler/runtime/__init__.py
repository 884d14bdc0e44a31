"""Builds, runs and verifies captured graphs at the calls of a compiled function."""
