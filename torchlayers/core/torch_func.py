"""torch.func's original transforms, for cases that ours leave to torch.

They are imported here once, with torchlayers: `install` may replace them by ours later, and ours
would then call themselves.
"""

from torch.func import functional_call as functional_call
from torch.func import functionalize as functionalize
from torch.func import grad as grad
from torch.func import grad_and_value as grad_and_value
from torch.func import hessian as hessian
from torch.func import jacfwd as jacfwd
from torch.func import jacrev as jacrev
from torch.func import jvp as jvp
from torch.func import vjp as vjp
from torch.func import vmap as vmap

__all__ = [
    "functional_call",
    "functionalize",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "vjp",
    "vmap",
]
