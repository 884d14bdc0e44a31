"""custom_jvp and custom_vjp: functions with derivatives of their own, written as in JAX.

A call is an autograd.Function, whose operands are the tensors among the arguments.
"""

from torchlayers.autograd_function.custom_derivatives.custom_jvp import custom_jvp as custom_jvp
from torchlayers.autograd_function.custom_derivatives.custom_vjp import custom_vjp as custom_vjp

__all__ = ["custom_jvp", "custom_vjp"]
