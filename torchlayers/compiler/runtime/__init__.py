"""Captured graphs made, run and verified, a call at a time."""
