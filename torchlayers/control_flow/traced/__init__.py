"""Control flow during capture, as higher-order operators whose operands are graphs."""
