"""Programs behind the Makefile's targets."""
