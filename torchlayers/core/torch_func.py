"""torch.func's transforms as torch made them, for when ours step aside.

They are looked up here, once, when torchlayers is imported: `install` may put ours in their place
later, and ours would then call themselves.
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
