"""torchlayers: function transforms for PyTorch, as a stack of layers on PyTorch's dispatcher."""

import importlib
from typing import TYPE_CHECKING

from torchlayers import _build_check

_build_check.check()  # before anything that loads the extension

# ruff: noqa: E402
from torchlayers import autograd_function as autograd_function
from torchlayers import checkpoint_policies as checkpoint_policies
from torchlayers import compiled as compiled
from torchlayers import debug as debug
from torchlayers import distributed as distributed
from torchlayers import errors as errors
from torchlayers import extend as extend
from torchlayers import graph as graph
from torchlayers import implicit as implicit
from torchlayers import memory as memory
from torchlayers import patches as patches
from torchlayers import random as random
from torchlayers import tree as tree
from torchlayers._install import install as install
from torchlayers._install import uninstall as uninstall
from torchlayers.autograd_function.custom_derivatives import custom_jvp as custom_jvp
from torchlayers.autograd_function.custom_derivatives import custom_vjp as custom_vjp
from torchlayers.autograd_function.custom_vmap import custom_vmap as custom_vmap
from torchlayers.compiler import compile as compile
from torchlayers.compiler import export as export
from torchlayers.compiler import load as load
from torchlayers.compiler import make_graph as make_graph
from torchlayers.compiler.coverage import coverage as coverage
from torchlayers.compiler.eval_shape import eval_shape as eval_shape
from torchlayers.compiler.jacobian.api import costs as costs
from torchlayers.compiler.jacobian.api import jacobian as jacobian
from torchlayers.compiler.jacobian.hessian import hessian as hessian
from torchlayers.control_flow import associative_scan as associative_scan
from torchlayers.control_flow import cond as cond
from torchlayers.control_flow import fori_loop as fori_loop
from torchlayers.control_flow import map as map
from torchlayers.control_flow import scan as scan
from torchlayers.control_flow import sequential_vmap as sequential_vmap
from torchlayers.control_flow import switch as switch
from torchlayers.control_flow import while_loop as while_loop
from torchlayers.control_flow.callbacks import io_callback as io_callback
from torchlayers.control_flow.callbacks import pure_callback as pure_callback
from torchlayers.core.argnums import combine as combine
from torchlayers.core.argnums import names as names
from torchlayers.core.argnums import partition as partition
from torchlayers.core.jax_names import refuse_name
from torchlayers.core.layer_stack import current_stack as current_stack
from torchlayers.core.tensors.indexed import at as at
from torchlayers.core.tensors.inspection import inspect as inspect
from torchlayers.core.tensors.inspection import is_alive as is_alive
from torchlayers.core.tensors.inspection import is_batched as is_batched
from torchlayers.core.tensors.inspection import level as level
from torchlayers.core.tensors.inspection import unwrap as unwrap
from torchlayers.core.tensors.shape_dtype import ShapeDtypeStruct as ShapeDtypeStruct
from torchlayers.core.trace import trace as trace
from torchlayers.implicit import custom_fixed_point as custom_fixed_point
from torchlayers.implicit import custom_linear_solve as custom_linear_solve
from torchlayers.implicit import custom_root as custom_root
from torchlayers.implicit import linear_transpose as linear_transpose
from torchlayers.modules import debug_unwrap as debug_unwrap
from torchlayers.modules import rearrange as rearrange
from torchlayers.modules import replace_all_batch_norm_modules_ as replace_all_batch_norm_modules_
from torchlayers.modules.ensemble import Ensemble as Ensemble
from torchlayers.modules.ensemble import ensemble as ensemble
from torchlayers.modules.ensemble import stack_module_state as stack_module_state
from torchlayers.modules.functional import functional as functional
from torchlayers.modules.functional_call import functional_call as functional_call
from torchlayers.random.seeded import recomputation as recomputation
from torchlayers.random.seeded import seeded as seeded
from torchlayers.remat.checkpoint import checkpoint as checkpoint
from torchlayers.remat.policies import checkpoint_name as checkpoint_name
from torchlayers.taps import intermediates as intermediates
from torchlayers.taps import tap as tap
from torchlayers.transforms.functionalize import functionalize as functionalize
from torchlayers.transforms.grad import grad as grad
from torchlayers.transforms.grad_and_value import grad_and_value as grad_and_value
from torchlayers.transforms.hvp import hvp as hvp
from torchlayers.transforms.jacobian.forward import jacfwd as jacfwd
from torchlayers.transforms.jacobian.reverse import jacrev as jacrev
from torchlayers.transforms.jet import jet as jet
from torchlayers.transforms.jvp import jvp as jvp
from torchlayers.transforms.laplacian import biharmonic as biharmonic
from torchlayers.transforms.laplacian import directional_derivatives as directional_derivatives
from torchlayers.transforms.laplacian import hessian_diagonal as hessian_diagonal
from torchlayers.transforms.laplacian import laplacian as laplacian
from torchlayers.transforms.layers.layer import Layer as Layer
from torchlayers.transforms.layers.layer_tensor import LayerTensor as LayerTensor
from torchlayers.transforms.layers.operator_call import OperatorCall as OperatorCall
from torchlayers.transforms.linearize import linearize as linearize
from torchlayers.transforms.per_sample import clipped_grad as clipped_grad
from torchlayers.transforms.per_sample import per_sample_norms as per_sample_norms
from torchlayers.transforms.sparse import coo_entries as coo_entries
from torchlayers.transforms.sparse.api import sparsity as sparsity
from torchlayers.transforms.sparse.coloring import Coloring as Coloring
from torchlayers.transforms.sparse.coloring import coloring as coloring
from torchlayers.transforms.sparse.pattern import SparsityPattern as SparsityPattern
from torchlayers.transforms.vjp import vjp as vjp
from torchlayers.transforms.vmap import vmap as vmap

if TYPE_CHECKING:
    from torchlayers import testing as testing

__version__ = "0.2.0"

__all__ = [
    "Coloring",
    "Ensemble",
    "Layer",
    "LayerTensor",
    "OperatorCall",
    "ShapeDtypeStruct",
    "SparsityPattern",
    "associative_scan",
    "at",
    "autograd_function",
    "biharmonic",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clipped_grad",
    "coloring",
    "combine",
    "compile",
    "compiled",
    "cond",
    "costs",
    "coverage",
    "current_stack",
    "custom_fixed_point",
    "custom_jvp",
    "custom_linear_solve",
    "custom_root",
    "custom_vjp",
    "custom_vmap",
    "debug",
    "debug_unwrap",
    "directional_derivatives",
    "distributed",
    "ensemble",
    "errors",
    "eval_shape",
    "export",
    "extend",
    "fori_loop",
    "functional",
    "functional_call",
    "functionalize",
    "grad",
    "grad_and_value",
    "graph",
    "hessian",
    "hessian_diagonal",
    "hvp",
    "implicit",
    "inspect",
    "install",
    "intermediates",
    "io_callback",
    "is_alive",
    "is_batched",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jet",
    "jvp",
    "laplacian",
    "level",
    "linear_transpose",
    "linearize",
    "load",
    "make_graph",
    "map",
    "memory",
    "names",
    "partition",
    "per_sample_norms",
    "pure_callback",
    "random",
    "rearrange",
    "recomputation",
    "replace_all_batch_norm_modules_",
    "scan",
    "seeded",
    "sequential_vmap",
    "sparsity",
    "stack_module_state",
    "switch",
    "tap",
    "testing",
    "trace",
    "tree",
    "uninstall",
    "unwrap",
    "vjp",
    "vmap",
    "while_loop",
]


def __dir__() -> list[str]:
    """Returns only public names, without the subpackages that define them."""
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # for type checkers, other names do not exist

    def __getattr__(name):
        """Imports torchlayers.testing, and says what JAX's names are called here."""
        if name == "testing":
            return importlib.import_module("torchlayers.testing")
        return refuse_name(__name__, name)
