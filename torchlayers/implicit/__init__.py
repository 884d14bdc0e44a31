"""Derivatives through solutions, by the implicit function theorem.

`root` and `linear_solve` have the public functions. A solver runs undifferentiated
(`undifferentiated`); its solution then passes through an autograd.Function whose rules solve linear
systems (`linear_system`), and these are differentiated in the same way, to any order.
`closed_function` makes the tensors that a user's function captures arguments of these Functions.
"""

from torchlayers.implicit import solvers as solvers
from torchlayers.implicit.convergence import ConvergenceWarning as ConvergenceWarning
from torchlayers.implicit.find import find_fixed_point as find_fixed_point
from torchlayers.implicit.find import find_root as find_root
from torchlayers.implicit.linear import linear_solve as linear_solve
from torchlayers.implicit.linear_solve import custom_linear_solve as custom_linear_solve
from torchlayers.implicit.linear_transpose import linear_transpose as linear_transpose
from torchlayers.implicit.optimize import least_squares as least_squares
from torchlayers.implicit.optimize import minimize as minimize
from torchlayers.implicit.root import custom_fixed_point as custom_fixed_point
from torchlayers.implicit.root import custom_root as custom_root
from torchlayers.implicit.solution import Solution as Solution

__all__ = [
    "ConvergenceWarning",
    "Solution",
    "custom_fixed_point",
    "custom_linear_solve",
    "custom_root",
    "find_fixed_point",
    "find_root",
    "least_squares",
    "linear_solve",
    "linear_transpose",
    "minimize",
    "solvers",
]
