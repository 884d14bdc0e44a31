"""Where torchlayers and torch.func don't do the same on op_db, each with its reason.

An entry is (operator, transform, dtype): reason. The sweep fails when something differs
that is not listed, and when something listed no longer differs.
"""

import torch

from tests.opinfo.cases import full_name, ops

DTYPES = ("float32", "float64", "complex64", "complex128", "bfloat16")

_REGISTERED_AUTOGRAD = (
    "only torchlayers works: a custom operator whose register_autograd torch.func refuses"
)
_LOST_TANGENT = (
    "only torch.func works, and gives a tangent of zeros: a custom operator without forward "
    "derivative, which torchlayers refuses"
)
_NO_FORMULA = "only torchlayers works: torch has no forward-mode formula, torchlayers a rule"
_RUNNING_STATISTICS = (
    "only torchlayers works: torch.func refuses tangents of batch norm's running statistics"
)
_REFUSED = "only torchlayers works: torch.func's zero tensors get in its own formula's way"
_NO_STORAGE = "only torchlayers works: torch.func reads numbers from a zero tensor"
WRONG_SECOND_DERIVATIVE = (
    "differs: torch.func's second derivative is wrong where the first is taken in forward mode, "
    "because a result that the formula uses is a constant to it"
)
_NAN = "differs: torch.func gives nan where a constant zero is multiplied by infinity"
_ROUNDING = "differs by rounding of the single precision that the operator goes through"

_FORWARD = ("jvp", "jvp(jvp)", "vmap(jvp)", "jvp(vmap)")
_REVERSE = ("grad", "vjp", "grad(vmap)", "vjp(vjp)")
_NESTS = (*_FORWARD, "grad(jvp)")

# reason: {operator: transforms}
_LISTED: dict[str, dict[str, tuple[str, ...]]] = {
    _REGISTERED_AUTOGRAD: {
        "nn.functional.linear_cross_entropy.chunked": (*_REVERSE, "vmap(grad)", "vmap(vjp)"),
        "nn.functional.linear_cross_entropy.chunked_none": _REVERSE,
    },
    _LOST_TANGENT: {
        "nn.functional.linear_cross_entropy.chunked": _FORWARD,
        "nn.functional.linear_cross_entropy.chunked_none": _FORWARD,
    },
    _NO_FORMULA: {
        "cdist": (*_NESTS, "jvp(grad)"),
        "grid_sampler_2d": (*_NESTS, "jvp(grad)"),
        "grid_sampler_3d": (*_NESTS, "jvp(grad)"),
        "native_dropout_backward": ("jvp", "jvp(jvp)", "vmap(jvp)", "grad(jvp)", "jvp(grad)"),
        "nn.functional.embedding_bag": (*_NESTS, "jvp(grad)"),
        "nn.functional.grid_sample": (*_NESTS, "jvp(grad)"),
        "nn.functional.hardsigmoid": ("jvp(grad)", "jvp(jvp)"),
        "nn.functional.huber_loss": ("jvp(grad)", "jvp(jvp)"),
        "nn.functional.multi_margin_loss": _NESTS,
        "nn.functional.multilabel_margin_loss": _NESTS,
        "nn.functional.pdist": (*_NESTS, "jvp(grad)"),
        "nn.functional.scaled_dot_product_attention": (*_NESTS, "jvp(grad)"),
        "nn.functional.soft_margin_loss": _FORWARD,
    },
    _REFUSED: {
        "nn.functional.alpha_dropout": ("jvp(jvp)",),
        "nn.functional.binary_cross_entropy": ("jvp", "jvp(jvp)", "vmap(jvp)"),
    },
    _RUNNING_STATISTICS: {
        "_native_batch_norm_legit": ("jvp(vmap)",),
        "nn.functional.batch_norm": _FORWARD,
    },
    _NO_STORAGE: {"tensor_split": ("jvp", "jvp(jvp)", "vmap(jvp)", "grad(jvp)")},
    WRONG_SECOND_DERIVATIVE: {
        "linalg.det": ("jvp(jvp)", "grad(jvp)"),
        "linalg.slogdet": ("jvp(jvp)", "grad(jvp)"),
        "linalg.solve": ("jvp(jvp)", "grad(jvp)"),
        "linalg.solve_ex": ("jvp(jvp)", "grad(jvp)"),
        "linalg.tensorsolve": ("jvp(jvp)", "grad(jvp)"),
        "logdet": ("jvp(jvp)", "grad(jvp)"),
        "native_batch_norm": (*_NESTS,),
        "native_layer_norm": ("jvp(jvp)", "grad(jvp)"),
        "nn.functional.instance_norm": ("jvp(jvp)",),
        "nn.functional.layer_norm": ("jvp(jvp)", "grad(jvp)"),
    },
    _NAN: {
        "addr": ("jvp(grad)",),
        "linalg.eigh": ("grad(jvp)",),
        "masked.logaddexp": ("jvp(jvp)",),
        "torch.ops.aten._safe_softmax.default": ("grad(jvp)",),
    },
    _ROUNDING: {"cfloat": ("jvp(grad)",)},
}


def _dtypes() -> dict[str, list[str]]:
    """The dtypes that each operator is swept in."""
    found: dict[str, list[str]] = {}
    for dtype in DTYPES:
        for op in ops(getattr(torch, dtype)):
            found.setdefault(full_name(op), []).append(dtype)
    return found


def _entries() -> dict[tuple[str, str, str], str]:
    dtypes = _dtypes()
    return {
        (name, transform, dtype): reason
        for reason, listed in _LISTED.items()
        for name, transforms in listed.items()
        for transform in transforms
        for dtype in dtypes[name]
    }


DIFFERENCES = _entries()
