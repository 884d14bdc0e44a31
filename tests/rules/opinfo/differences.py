"""Where torchlayers and torch.func differ on op_db, each with its reason.

An entry is (operator, transform, dtype): reason. The sweep fails on a difference that is not
listed, and on a listed one that no longer occurs.
"""

import itertools

import torch

from tests.rules.opinfo.cases import full_name, ops
from tests.support.expected_failures import has_samples

DTYPES = ("float32", "float64", "complex64", "complex128", "bfloat16")
_REAL = ("float32", "float64", "bfloat16")
_COMPLEX = ("complex64", "complex128")

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
_CHANNELS_LAST = (
    "only torchlayers works: torch.func can't ask in vmap for images whose channels come last"
)
_EQUAL_BOUNDS = (
    "differs: where both bounds are the same, torch.func's tangent of clamp is the lower one's and "
    "its gradient neither's; torchlayers has neither's for both"
)
_IN_ORDER = "only torchlayers works: torch.func calls a kernel that wants its batch in order"
_RANDOM_MASK = (
    "only torchlayers works: torch.func can't draw a mask of its own for each sample of two vmaps"
)
_NO_ALLCLOSE = "only torchlayers works: torch.func's vmap can't look for phases"
_PHASE = (
    "only torch.func works, and gives a number that depends on the phases of eigenvectors, which "
    "are any: torchlayers refuses, as both do elsewhere"
)
_READS_NUMBERS = (
    "only torchlayers works: torch.func's gradient of a product reads numbers of a batch"
)
_NO_PRODUCT = (
    "differs: torch.func has no tangent of what scatter_reduce multiplies in; torchlayers has the "
    "product's, as finite differences have"
)
_DIFFERENTIATED_ONCE = "only torchlayers works: torch differentiates the operator once"
_OF_MASK = "only torchlayers works: torch's kernel of attention has no gradient of the mask"
_OF_WEIGHT = "only torchlayers works: torch has no gradient by the weight of each element"
_ABSENT_WEIGHT = (
    "only torchlayers works: torch.func's second derivative trips over an absent weight"
)
_NO_STORAGE = "only torchlayers works: torch.func reads numbers from a zero tensor"
_OVERWRITTEN = (
    "differs: torch's gradient by what is overwritten is not zero where that is everything"
)
_PART_IN_PLACE = (
    "differs: torch.func's batching rule writes the part into a view, and its gradient by the part "
    "is not that of a loop over the samples"
)
WRONG_SECOND_DERIVATIVE = (
    "differs: torch.func's second derivative is wrong where the first is taken in forward mode, "
    "because a result that the formula uses is a constant to it"
)
_WRONG_TANGENT = "differs: torch.func's tangent is not the limit of differences"
_EPSILON = (
    "differs: torch.func's tangent of logcumsumexp has an epsilon in it, which shows in the sixth "
    "digit, and is nan for complex numbers"
)
_NAN = (
    "differs: torch.func gives nan where it multiplies a zero by infinity or nan, or divides it by "
    "zero; torchlayers gives zero, or leaves the zero out"
)
_ASSERTION = (
    "only torchlayers works: an internal assertion on a conjugate's tangent fails in torch.func"
)
_TAKEN_APART = (
    "only torchlayers works: torch.func's vmap refuses the operator, which torchlayers takes apart"
)
_OUR_BATCHING = "only torchlayers works: torch.func's vmap has no rule for the operator"
_OTHER_SAMPLES = (
    "only torch.func works, and shows elements of other samples, with which a sample is "
    "interleaved in memory: torchlayers refuses"
)
_SPARSE = "only torchlayers works: torch.func's jvp can't return a sparse gradient"
_TO_SPARSE = "only torchlayers works: torch has no forward mode of a conversion to a sparse tensor"
_COMPRESSED = "only torchlayers works: torch.func asks a sparse tensor in CSR for strides"
_NO_KERNEL = (
    "only torchlayers works: torch has no kernel in bfloat16 that torch.func's formula calls for"
)
_MIXED_DTYPES = (
    "only torchlayers works: torch's second derivative of sampling with reflection scatters, in "
    "bfloat16, numbers of another dtype"
)
_SINGLE = "differs by rounding of the single precision that the operator goes through"
_ROUNDING = (
    "differs by rounding, where results are large or a softmax is saturated: torchlayers rounds as "
    "reverse mode does, torch.func otherwise and mostly nearer to double precision"
)
_LAST_DIGITS = "differs by rounding in the last digits of one element"
_DTYPE = (
    "differs: torch.func's tangent of the variance or deviation of no elements is float32 where "
    "they are bfloat16"
)
_DTYPE_OF_RENORM = "differs: torch.func's tangent of renorm is float32 for bfloat16"
_TIE = (
    "differs: of equal numbers torch.func's tangent of fmax is the second's, while its gradient is "
    "the first's; torchlayers takes the first's for both"
)

_OF_VMAP = (
    *("vmap", "vmap, in_dims=-1", "vmap, first input"),
    *("grad(vmap)", "jvp(vmap)", "vmap(vmap)"),
)
_FORWARD = ("jvp", "jvp(jvp)", "vmap(jvp)", "jvp(vmap)")
_REVERSE = ("grad", "vjp", "grad(vmap)", "vjp(vjp)")
_NESTS = (*_FORWARD, "grad(jvp)")
_DERIVATIVES = (*_NESTS, *_REVERSE, "vmap(grad)", "vmap(vjp)", "jvp(grad)")

# reason: {operator: transforms}, in every dtype of the sweep, or, for some dtypes only, {operator:
# {transforms: dtypes}}
_LISTED: dict[str, dict[str, tuple[str, ...] | dict[tuple[str, ...], tuple[str, ...]]]] = {
    _REGISTERED_AUTOGRAD: {
        "nn.functional.linear_cross_entropy.chunked": (*_REVERSE, "vmap(grad)", "vmap(vjp)"),
        "nn.functional.linear_cross_entropy.chunked_none": (*_REVERSE, "vmap(grad)", "vmap(vjp)"),
    },
    _LOST_TANGENT: {
        "nn.functional.linear_cross_entropy.chunked": _FORWARD,
        "nn.functional.linear_cross_entropy.chunked_none": _FORWARD,
    },
    _NO_FORMULA: {
        "_segment_reduce.lengths": (*_NESTS, "jvp(grad)"),
        "_segment_reduce.offsets": (*_NESTS, "jvp(grad)"),
        "cholesky": (*_NESTS, "jvp(grad)"),
        "cdist": (*_NESTS, "jvp(grad)"),
        "grid_sampler_2d": (*_NESTS, "jvp(grad)"),
        "index_reduce.amax": (*_NESTS, "jvp(grad)"),
        "index_reduce.amin": (*_NESTS, "jvp(grad)"),
        "index_reduce.mean": (*_NESTS, "jvp(grad)"),
        "index_reduce.prod": (*_NESTS, "jvp(grad)"),
        "nn.functional.ctc_loss": ("jvp", "vmap(jvp)", "jvp(vmap)"),
        "grid_sampler_3d": (*_NESTS, "jvp(grad)"),
        "native_dropout_backward": ("jvp", "jvp(jvp)", "vmap(jvp)", "grad(jvp)", "jvp(grad)"),
        "nn.functional.embedding_bag": (*_NESTS, "jvp(grad)"),
        "nn.functional.grid_sample": (*_NESTS, "jvp(grad)"),
        "nn.functional.hardsigmoid": ("jvp(grad)", "jvp(jvp)"),
        "nn.functional.huber_loss": ("jvp(grad)", "jvp(jvp)"),
        "nn.functional.multi_margin_loss": _NESTS,
        "nn.functional.multilabel_margin_loss": (*_NESTS, "jvp(grad)"),
        "nn.functional.pdist": (*_NESTS, "jvp(grad)"),
        "nn.functional.scaled_dot_product_attention": (*_NESTS, "jvp(grad)"),
        "nn.functional.soft_margin_loss": _FORWARD,
        "ormqr": (*_NESTS, "jvp(grad)"),
    },
    _REFUSED: {
        "nn.functional.alpha_dropout": ("jvp(jvp)",),
        "nn.functional.binary_cross_entropy": ("jvp", "jvp(jvp)", "vmap(jvp)"),
    },
    _RUNNING_STATISTICS: {
        "_native_batch_norm_legit": ("jvp(vmap)",),
        "native_batch_norm": _FORWARD,
        "nn.functional.batch_norm": _FORWARD,
    },
    _CHANNELS_LAST: {
        "nn.functional.max_unpool2d": ("vmap(grad)", "vmap(vjp)"),
        "nn.functional.max_unpool2d.grad": ("vmap(grad)", "vmap(vjp)"),
    },
    _EQUAL_BOUNDS: {"clamp": {_FORWARD: ("bfloat16",)}},
    _IN_ORDER: {"native_group_norm": ("vmap, in_dims=-1",)},
    _RANDOM_MASK: {"nn.functional.scaled_dot_product_attention": ("vmap(vmap)",)},
    _NO_ALLCLOSE: {
        name: {("vmap(grad)", "vmap(vjp)"): _COMPLEX}
        for name in ("linalg.svd", "pca_lowrank", "svd", "svd_lowrank")
    },
    _PHASE: {
        "linalg.eig": ("vjp(vjp)",),
        "linalg.eigh": {("vjp(vjp)",): _COMPLEX},
    },
    _READS_NUMBERS: {
        "index_reduce.prod": ("vmap(grad)", "vmap(vjp)"),
        "scatter_reduce.prod": ("vmap(grad)", "vmap(vjp)"),
    },
    _NO_PRODUCT: {"scatter_reduce.prod": (*_NESTS, "jvp(grad)")},
    _DIFFERENTIATED_ONCE: {
        "_segment_reduce.lengths": ("vjp(vjp)",),
        "_segment_reduce.offsets": ("vjp(vjp)",),
        "cdist": ("vjp(vjp)",),
        "nn.functional.glu": {
            ("jvp(jvp)",): ("float32", "float64"),
            ("grad(jvp)",): _REAL,
        },
        "nn.functional.ctc_loss": ("jvp(grad)", "vjp(vjp)", "jvp(jvp)", "grad(jvp)"),
        "nn.functional.embedding_bag": ("vjp(vjp)",),
        "nn.functional.hardsigmoid": ("vjp(vjp)", "grad(jvp)"),
        "nn.functional.multi_margin_loss": ("jvp(grad)", "vjp(vjp)"),
        "nn.functional.multilabel_margin_loss": {("vjp(vjp)",): ("float32", "float64")},
        "nn.functional.pdist": ("vjp(vjp)",),
        "nn.functional.scaled_dot_product_attention": ("vjp(vjp)",),
    },
    _OF_WEIGHT: {
        "nn.functional.binary_cross_entropy": (
            *("grad", "vjp", "vmap(grad)", "vmap(vjp)"),
            *("jvp(grad)", "vjp(vjp)", "grad(jvp)"),
        ),
    },
    _OF_MASK: {"nn.functional.scaled_dot_product_attention": ("grad(vmap)",)},
    _ABSENT_WEIGHT: {"native_layer_norm": ("vjp(vjp)",)},
    _NO_STORAGE: {
        "tensor_split": (
            *("jvp", "jvp(jvp)", "vmap(jvp)", "grad(jvp)", "jvp(grad)"),
            *("grad", "vjp", "vjp(vjp)", "vmap(grad)", "vmap(vjp)"),
        )
    },
    _TAKEN_APART: {name: _OF_VMAP for name in ("column_stack", "narrow", "tensor_split")},
    _OUR_BATCHING: {
        "as_strided_scatter": (*_OF_VMAP, "vmap(grad)", "vmap(jvp)", "vmap(vjp)"),
        "nn.functional.rrelu": (*_OF_VMAP, "vmap(grad)", "vmap(jvp)", "vmap(vjp)"),
    },
    _SPARSE: {"nn.functional.embedding": ("jvp(grad)",)},
    _TO_SPARSE: {
        "to_sparse": {
            ("jvp", "jvp(jvp)"): ("float32", "float64", *_COMPLEX, "bfloat16"),
            ("grad(jvp)", "jvp(grad)"): ("float32", "float64", "bfloat16"),
        },
    },
    _COMPRESSED: {
        "sparse.mm.reduce": ("grad", "vjp", "grad(vmap)", "vmap(grad)", "vmap(vjp)"),
        "sparse.sampled_addmm": {
            ("grad", "vjp", "jvp", "jvp(jvp)", "grad(jvp)", "jvp(grad)"): (
                *("float32", "float64"),
                *_COMPLEX,
            ),
            ("vjp(vjp)",): ("float32", "float64"),
        },
    },
    _NO_KERNEL: {
        "i0": {("jvp(jvp)", "jvp(grad)", "grad(jvp)", "vjp(vjp)"): ("bfloat16",)},
        "special.i0e": {("jvp(jvp)", "jvp(grad)", "grad(jvp)", "vjp(vjp)"): ("bfloat16",)},
        "special.i1": {_DERIVATIVES: ("bfloat16",)},
        "special.i1e": {_DERIVATIVES: ("bfloat16",)},
    },
    _MIXED_DTYPES: {
        "grid_sampler_2d": {("vjp(vjp)",): ("bfloat16",)},
        "nn.functional.grid_sample": {("vjp(vjp)",): ("bfloat16",)},
    },
    _ASSERTION: {"linalg.lu_solve": {("jvp(jvp)", "jvp(grad)"): _COMPLEX}},
    _WRONG_TANGENT: {
        "cholesky_inverse": (*_NESTS, "jvp(grad)"),
        "triangular_solve": (*_NESTS, "jvp(grad)"),
    },
    _EPSILON: {"logcumsumexp": {(*_NESTS, "jvp(grad)"): ("float64", *_COMPLEX)}},
    WRONG_SECOND_DERIVATIVE: {
        "cumprod": ("jvp(jvp)", "grad(jvp)"),
        "linalg.det": ("jvp(jvp)", "grad(jvp)"),
        "linalg.householder_product": ("jvp(jvp)", "grad(jvp)"),
        "linalg.slogdet": ("jvp(jvp)", "grad(jvp)"),
        "linalg.solve": ("jvp(jvp)", "grad(jvp)"),
        "linalg.solve_ex": ("jvp(jvp)", "grad(jvp)"),
        "linalg.tensorsolve": ("jvp(jvp)", "grad(jvp)"),
        "logdet": ("jvp(jvp)", "grad(jvp)"),
        "native_batch_norm": ("jvp(jvp)", "grad(jvp)"),
        "native_layer_norm": ("jvp(jvp)", "grad(jvp)"),
        "nn.functional.batch_norm": ("jvp(jvp)", "grad(jvp)"),
        "nn.functional.instance_norm": ("jvp(jvp)", "grad(jvp)"),
        "nn.functional.layer_norm": ("jvp(jvp)", "grad(jvp)"),
    },
    _OTHER_SAMPLES: {
        name: ("vmap, in_dims=-1",)
        for name in ("as_strided", "as_strided.partial_views", "as_strided_copy")
    },
    _OVERWRITTEN: {"as_strided_scatter": ("grad", "vjp", "jvp(grad)")},
    _PART_IN_PLACE: {"select_scatter": ("grad(vmap)",)},
    _NAN: {
        "addr": {("jvp(grad)",): _REAL},
        "linalg.eig": ("grad(jvp)",),
        "linalg.eigh": ("grad(jvp)",),
        "linalg.norm": ("jvp(jvp)",),
        "linalg.norm.subgradients_at_zero": ("jvp(jvp)", "jvp(grad)", "vjp(vjp)"),
        "masked.amax": (*_REVERSE[:3], "vmap(grad)", "vmap(vjp)", "jvp(grad)"),
        "masked.amin": (*_REVERSE[:3], "vmap(grad)", "vmap(vjp)", "jvp(grad)"),
        "masked.logaddexp": ("jvp(jvp)", "grad(jvp)", "vjp(vjp)"),
        "masked.prod": {("vjp", "vjp(vjp)", "grad(jvp)"): _REAL},
        "masked.mean": {("jvp(jvp)",): DTYPES, ("vmap(jvp)",): _REAL},
        "renorm": {(*_REVERSE, "vmap(grad)", "vmap(vjp)", "jvp(grad)"): ("complex64",)},
        "torch.ops.aten._safe_softmax.default": ("grad(jvp)",),
    },
    _SINGLE: {"cfloat": {("jvp(grad)",): ("float64",)}},
    _LAST_DIGITS: {
        "addcdiv": {("grad(jvp)",): ("float32",)},
        "nn.functional.conv_transpose3d": {("grad(vmap)",): ("complex64",)},
    },
    _ROUNDING: {
        "logcumsumexp": {(*_NESTS, "vjp(vjp)"): ("float32", "bfloat16")},
        "logsumexp": {
            (*_NESTS, "jvp(grad)"): ("complex64",),
            ("jvp(jvp)",): ("bfloat16",),
        },
        "nn.functional.cross_entropy": {("jvp(jvp)",): ("bfloat16",)},
        "nn.functional.multi_head_attention_forward": {
            ("jvp", "jvp(vmap)"): ("float32",),
            ("jvp(jvp)", "jvp(grad)", "grad(jvp)"): ("float32", "bfloat16"),
        },
    },
    _DTYPE_OF_RENORM: {"renorm": {_FORWARD: ("bfloat16",)}},
    _DTYPE: {
        name: {("jvp", "jvp(jvp)", "vmap(jvp)"): ("bfloat16",)}
        for operator in ("std", "std_mean", "var", "var_mean")
        for name in (operator, f"{operator}.unbiased")
    },
    _TIE: {"fmax": {("jvp", "jvp(jvp)", "jvp(vmap)"): ("bfloat16",)}},
}


def _dtypes() -> dict[str, list[str]]:
    """The dtypes in which each operator is swept."""
    found: dict[str, list[str]] = {}
    for dtype in DTYPES:
        for op in ops(getattr(torch, dtype)):
            found.setdefault(full_name(op), []).append(dtype)
    return found


def _entries() -> dict[tuple[str, str, str], str]:
    """The list expanded to one entry per dtype; entries with two reasons keep both."""
    found: dict[tuple[str, str, str], str] = {}
    swept = _dtypes()
    for reason, operators in _LISTED.items():
        for name, listed in operators.items():
            if not has_samples(name):
                continue
            by_transforms = listed if isinstance(listed, dict) else {listed: tuple(swept[name])}
            for transforms, dtypes in by_transforms.items():
                for key in itertools.product((name,), transforms, dtypes):
                    found[key] = f"{found[key]}; {reason}" if key in found else reason
    return found


DIFFERENCES = _entries()
