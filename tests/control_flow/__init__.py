"""Control flow: cond, switch, while_loop, fori_loop, scan, associative_scan, map."""
