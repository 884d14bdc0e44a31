"""Control flow during capture, as operators that hold graphs."""
