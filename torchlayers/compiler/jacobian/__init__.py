"""jacobian and costs: the mode of a Jacobian chosen by costs that are counted, not measured.

mode_costs.py captures the Jacobian in each mode and counts; decision.py keeps what was chosen for
arguments of these shapes; api.py has the two public functions.
"""
