"""Functions recorded through the layers, simplified, and run as compiled code.

record.py writes down the plain operators that reach the bottom of the stack.
"""
