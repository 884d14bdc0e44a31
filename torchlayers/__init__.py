"""torchlayers: function transforms for PyTorch, as a stack of layers on its own dispatcher."""

from torchlayers import built_for

built_for.check()  # before anything that loads the extension

# ruff: noqa: E402
from torchlayers import autograd_function as autograd_function
from torchlayers import checkpoint_policies as checkpoint_policies
from torchlayers import copies as copies
from torchlayers import distributed as distributed
from torchlayers import extend as extend
from torchlayers import graph as graph
from torchlayers import higher_order as higher_order
from torchlayers import hooks as hooks
from torchlayers import local_gradients as local_gradients
from torchlayers import printing as printing
from torchlayers import random as random
from torchlayers.checkpoint import checkpoint as checkpoint
from torchlayers.checkpoint_policies import checkpoint_name as checkpoint_name
from torchlayers.compiled import compile as compile
from torchlayers.compiled import load as load
from torchlayers.compiled import make_graph as make_graph
from torchlayers.control_flow import associative_scan as associative_scan
from torchlayers.control_flow import cond as cond
from torchlayers.control_flow import fori_loop as fori_loop
from torchlayers.control_flow import map as map
from torchlayers.control_flow import scan as scan
from torchlayers.control_flow import switch as switch
from torchlayers.control_flow import while_loop as while_loop
from torchlayers.ensemble import Ensemble as Ensemble
from torchlayers.ensemble import ensemble as ensemble
from torchlayers.ensemble import stack_module_state as stack_module_state
from torchlayers.functional import functional as functional
from torchlayers.functional_call import functional_call as functional_call
from torchlayers.functionalize import functionalize as functionalize
from torchlayers.grad import grad as grad
from torchlayers.grad import grad_and_value as grad_and_value
from torchlayers.grad import vjp as vjp
from torchlayers.hvp import hvp as hvp
from torchlayers.install import install as install
from torchlayers.install import uninstall as uninstall
from torchlayers.jacobian import hessian as hessian
from torchlayers.jacobian import jacfwd as jacfwd
from torchlayers.jacobian import jacrev as jacrev
from torchlayers.jvp import jvp as jvp
from torchlayers.linearize import linearize as linearize
from torchlayers.module import debug_unwrap as debug_unwrap
from torchlayers.module import rearrange as rearrange
from torchlayers.module import replace_all_batch_norm_modules_ as replace_all_batch_norm_modules_
from torchlayers.names import combine as combine
from torchlayers.names import names as names
from torchlayers.names import partition as partition
from torchlayers.sample_norms import clipped_grad as clipped_grad
from torchlayers.sample_norms import per_sample_norms as per_sample_norms
from torchlayers.seeded import recomputation as recomputation
from torchlayers.seeded import seeded as seeded
from torchlayers.stack import current_stack as current_stack
from torchlayers.taps import intermediates as intermediates
from torchlayers.taps import tap as tap
from torchlayers.trace import trace as trace
from torchlayers.vmap import vmap as vmap

__version__ = "0.1.0"

__all__ = [
    "Ensemble",
    "associative_scan",
    "autograd_function",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clipped_grad",
    "combine",
    "compile",
    "cond",
    "current_stack",
    "debug_unwrap",
    "distributed",
    "ensemble",
    "extend",
    "fori_loop",
    "functional",
    "functional_call",
    "functionalize",
    "grad",
    "grad_and_value",
    "graph",
    "hessian",
    "hvp",
    "install",
    "intermediates",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "load",
    "make_graph",
    "map",
    "names",
    "partition",
    "per_sample_norms",
    "random",
    "rearrange",
    "recomputation",
    "replace_all_batch_norm_modules_",
    "scan",
    "seeded",
    "stack_module_state",
    "switch",
    "tap",
    "trace",
    "uninstall",
    "vjp",
    "vmap",
    "while_loop",
]
