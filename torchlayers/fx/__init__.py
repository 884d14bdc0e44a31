"""What every reader or writer of FX graphs shares: nodes, custom operators, operator replacements,
running a graph in C++.
"""
