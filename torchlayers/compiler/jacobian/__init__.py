"""jacobian, hessian and costs: the mode of a derivative chosen by costs that are counted.

differentiated.py has a function's Jacobian and Hessian in each mode; mode_costs.py captures them
and counts; decision.py keeps what was chosen for arguments of these shapes; derivative.py has the
functions that are returned; api.py and hessian.py the public ones.
"""
