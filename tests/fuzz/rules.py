"""The lines that programs are made of: a Rule each, in families.

NOTE [Well-conditioned programs]
Programs are compared up to fourth derivatives, so a rounding error has to stay one. Values that
grow are squashed. Denominators, and the arguments of roots and logarithms, stay away from zero.
What compares (where, clamp) does so with an odd number of its own, so that no value computed in
two ways is on both sides of it. What orders (sort, max) has its elements put APART first. The
levels are linear in the derivatives that they pass on. At special values none of this holds, and
the families are others (AT_SPECIAL_VALUES).

NOTE [Left out]
What torch itself gets wrong, in torch.func as much as here: layer_norm (third derivatives, and
second ones with jvp inside), select_scatter (the gradient of its batching rule), addcmul_ and
lerp_ (vmap in vmap, with an operand of the outer one's), and the assignment of a tensor without
dimensions to a part that has some (vmap of jvp, to what has no tangent). And logcumsumexp: its
backward takes the cotangent's logarithm, and the reference has one of zeros.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.values import APART

# Conditions on a rule's operands: on the first, and on each further one given those before it.


def anything(*operands: Tensor) -> bool:
    return True


def has_dims(a: Tensor) -> bool:
    return a.dim() > 0


def has_two_dims(a: Tensor) -> bool:
    return a.dim() > 1


def is_real(*operands: Tensor) -> bool:
    return operands[-1].is_floating_point()


def is_complex(*operands: Tensor) -> bool:
    return operands[-1].is_complex()


def has_two_real_dims(a: Tensor) -> bool:
    return has_two_dims(a) and is_real(a)


def is_real_vector(a: Tensor) -> bool:
    return a.dim() == 1 and is_real(a)


def has_three_dims(a: Tensor) -> bool:
    return a.dim() == 3


def has_two_columns(a: Tensor) -> bool:
    return a.dim() > 0 and a.shape[-1] > 1


def can_be_apart(a: Tensor) -> bool:
    return a.dim() > 0 and 1 < a.shape[-1] <= len(APART)


def can_grow(a: Tensor) -> bool:
    return a.dim() < 3 and a.numel() <= 9


def has_dims_and_can_grow(a: Tensor) -> bool:
    return has_dims(a) and can_grow(a)


def same_shape(*operands: Tensor) -> bool:
    return operands[-1].shape == operands[0].shape


def broadcast(*operands: Tensor) -> bool:
    return _broadcast(*(operand.shape for operand in operands))


def are_vectors(*operands: Tensor) -> bool:
    return operands[-1].dim() == 1


def can_multiply(a: Tensor, b: Tensor) -> bool:
    if a.dim() == 0 or b.dim() == 0 or max(a.numel(), b.numel()) > 400:
        return False
    inner = b.shape[0] if b.dim() == 1 else b.shape[-2]
    return a.shape[-1] == inner and _broadcast(a.shape[:-2], b.shape[:-2])


def has_few_rows(a: Tensor) -> bool:
    return a.dim() in (1, 2) and 0 < a.shape[0] <= 4 and a.dtype == torch.float64


def has_few_columns(a: Tensor) -> bool:
    return a.dim() == 2 and 0 < a.shape[1] <= 4 and a.dtype == torch.float64


def fits(*operands: Tensor) -> bool:
    return _expands(operands[-1].shape, operands[0].shape)


def fits_a_row(*operands: Tensor) -> bool:
    return has_dims(operands[0]) and _expands(operands[-1].shape, operands[0].shape[1:])


def is_row(*operands: Tensor) -> bool:
    return operands[-1].shape == operands[0].shape[1:]


def _broadcast(*shapes: torch.Size) -> bool:
    columns = itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    return all(len({*sizes} - {1}) <= 1 for sizes in columns)


def _expands(shape: torch.Size, target: torch.Size) -> bool:
    return len(shape) <= len(target) and all(
        size in (1, wanted) for size, wanted in zip(shape[::-1], target[::-1], strict=False)
    )


@dataclasses.dataclass(frozen=True)
class Rule:
    """A line of a program, with fields to fill in.

    {a}, {b} and {c} are operands, and {w} is one to write to; for the others see Writer.fields.
    """

    text: str
    first: Callable[..., bool] = anything
    others: Callable[..., bool] = anything
    # The operands and the result must not be written to afterwards; for a rule that writes, {w}.
    seals: bool = False

    @property
    def operands(self) -> str:
        return "".join(name for name in "wabc" if f"{{{name}}}" in self.text)

    @property
    def writes(self) -> bool:
        return self.operands.startswith("w")

    @property
    def through_view(self) -> bool:
        """Whether the rule writes to a view that it makes of {w}, not to {w} itself."""
        return self.text.startswith(("{w}[", "{w}.transpose(", "{w}.as_strided("))

    @property
    def has_threshold(self) -> bool:
        return "{t}" in self.text and "K > {t}" not in self.text

    @property
    def is_entire(self) -> bool:
        """Without poles, branch points and thresholds, for complex numbers and low precision."""
        words = "/ ** sqrt log tanh reciprocal atan hypot norm std var sigmoid gelu silu soft {t}"
        return not any(word in self.text for word in words.split())


def rules(*texts: str, **conditions: Any) -> list[Rule]:
    return [Rule(text, **conditions) for text in texts]


POINTWISE = [
    *rules(
        "{a}.sin()",
        "{a}.cos()",
        "{a}.tanh()",
        "{a}.sigmoid()",
        "{a}.tanh().exp()",
        "{a}.tanh().expm1()",
        "{a}.erf()",
        "{a}.atan()",
        "{a}.square()",
        "{a} ** 3",
        "-{a}",
        "{a} * 1.5",
        "0.5 - {a}",
        "{a} / (1 + {a} * {a})",
        "({a} * {a}).log1p()",
        "(1 + {a} * {a}).sqrt()",
        "(1 + {a} * {a}).rsqrt()",
        "(2 + {a}.sin()).log()",
        "(2 + {a}.sin()).reciprocal()",
        "torch.nn.functional.softplus({a})",
        "torch.nn.functional.gelu({a})",
        "torch.nn.functional.silu({a})",
        "{a}.clamp(-{t}, 4 * {t})",
        "{a}.clamp(min={t})",
    ),
    Rule("{a}.detach()", seals=True),
]

BROADCASTING = rules(
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "{a} / (1 + {b} * {b})",
    "(2 + {a}.sin()) ** {b}.tanh()",
    "torch.atan2({a}, 2 + {b}.sin())",
    "torch.hypot({a}, 2 + {b}.sin())",
    "torch.logaddexp({a}, {b})",
    "torch.lerp({a}, {b}, 0.3)",
    "torch.addcmul({a}, {b}, {c}, value=0.5)",
    "torch.where({a} > {t}, {b}, {c})",
    "torch.where({a} > {t}, {b}, 0.2)",
    "{a}.masked_fill({b} > {t}, 0.9)",
    others=broadcast,
)

VIEWS = [
    *rules(
        "{a}.select({d}, {i})",
        "{a}.narrow({d}, {p}, 1)",
        "{a}.transpose({d}, -1)",
        "{a}.movedim({d}, 0)",
        "{a}.squeeze({d})",
        "{a}[{i}]",
        "{a}[{p}:]",
        "{a}[..., ::2]",
        "{a}.as_strided({a}.shape, {a}.stride())",
        first=has_dims,
    ),
    *rules("{a}.mT", "{a}.diagonal()", "{a}[:, None, 0]", first=has_two_dims),
    *rules("{a}.unsqueeze(-1)", "{a}[None]", first=can_grow),
]

# Views whose memory overlaps, to which torch forbids writing, or which are sometimes copies.
OTHER_VIEWS = [
    *rules("{a}.expand(2, *{a}.shape)", "{a}.expand_as({a}[None])", first=can_grow, seals=True),
    *rules(
        "{a}.unbind({d})[{i}]",
        "{a}.split(1, {d})[{p}]",
        "{a}.unfold({d}, 1, 1).mean(-1)",
        "{a}.reshape(-1)",
        "{a}.reshape({a}.shape[::-1])",
        first=has_dims,
        seals=True,
    ),
]

FRESH = rules(
    "{a}.clone()",
    "torch.empty_like({a}).copy_({a})",
    "torch.zeros_like({a})",
    "{a}.new_ones({shape})",
    "torch.ones({shape}, dtype=torch.float64)",
)

COPIES = [
    *FRESH,
    *rules(
        "{a}.flip({d})",
        "{a}.roll(1, {d})",
        "{a}.cumsum({d})",
        "torch.nn.functional.pad({a}, (1, -1))",
        first=has_dims,
    ),
    *rules("{a}.tril()", "{a}.triu(1)", first=has_two_dims),
    *rules(
        "{a}.tile(2)",
        "{a}.repeat_interleave(2, {d})",
        "torch.diag_embed({a})",
        first=has_dims_and_can_grow,
    ),
    *rules(
        "torch.cat(({a}, {b}), {d})",
        "torch.stack(({a}, {b}), {d})",
        first=has_dims_and_can_grow,
        others=same_shape,
    ),
]

REDUCTIONS = [
    *rules("{a}.sum()", "{a}.mean()", "(1 + {a} * {a}).norm()"),
    *rules(
        "{a}.sum({d})",
        "{a}.mean({d}, keepdim=True)",
        "{a}.var({d}, correction=0)",
        "{a}.logsumexp({d})",
        "(1 + {a} * {a}).norm(dim={d})",
        "{a}.softmax({d})",
        "{a}.log_softmax({d})",
        first=has_dims,
    ),
    *rules(
        "(2 + {a}.sin()).prod({d})", "(2 + {a}.sin()).cumprod({d})", first=has_dims_and_can_grow
    ),
    *rules("{a}.diff(dim=-1)", first=has_two_columns),
    *rules(
        "({a}.tanh() + APART[:{columns}]).std(-1)",
        "({a}.tanh() + APART[:{columns}]).amax(-1)",
        "({a}.tanh() + APART[:{columns}]).max(-1).values",
        "({a}.tanh() - APART[:{columns}]).cummax(-1).values",
        "({a}.tanh() + APART[:{columns}]).sort(-1).values",
        "({a}.tanh() + APART[:{columns}]).topk(2, -1).values",
        first=can_be_apart,
    ),
]

PRODUCTS = [
    *rules("{a} @ {b}", others=can_multiply),
    *rules("{a} @ {a}.mT", "torch.einsum('...ij,...ik->...jk', {a}, {a})", first=has_two_dims),
    *rules("torch.outer({a}, {b})", first=are_vectors, others=are_vectors),
    *rules("torch.einsum('...i,...i->...', {a}, {b})", first=has_dims, others=same_shape),
    *rules("torch.nn.functional.conv1d({a}, {a}, padding=1)", first=has_three_dims),
]

# Products with matrices of values.SPARSE, which torch.func supports only in places.
SPARSE_PRODUCTS = [
    *rules(
        "COO[{rows}] @ {a}",
        "CSR[{rows}] @ {a}",
        "COO[{rows}].t() @ {a}",
        "(CSR[{rows}] * 2) @ {a}",
        first=has_few_rows,
        seals=True,
    ),
    *rules("{a} @ COO[{columns}]", "{a} @ CSR[{columns}]", first=has_few_columns, seals=True),
]

INDEXING = [
    *rules(
        "{a}[{index}]",
        "{a}[..., -1, None]",
        "{a}.index_select({d}, {index})",
        "{a}.gather({d}, torch.full_like({a}, {p}, dtype=torch.int64))",
        first=has_dims,
    ),
    *rules(
        "{a}.index_add({d}, {order}, {b})",
        "{a}.index_copy({d}, {order}, {b})",
        "{a}.scatter_add({d}, torch.full_like({b}, {p}, dtype=torch.int64), {b})",
        first=has_dims,
        others=same_shape,
    ),
]

WRITES = [
    *rules("{w}.sin_()", "{w}.neg_()", "{w}.clamp_(-{t}, 4 * {t})", "{w}.fill_(0.3)"),
    # These save their own result.
    *rules("{w}.tanh_()", "{w}.sigmoid_()", seals=True),
    *rules(
        "{w}.copy_({b})",
        "{w}.add_({b}, alpha=2)",
        "{w}.mul_({b})",
        "{w}.div_(1 + {b} * {b})",
        "{w}.masked_fill_({b} > {t}, 0.9)",
        "{w} -= {b}",
        others=fits,
    ),
    *rules(
        "{w}.as_strided({w}.shape, {w}.stride()).mul_({b})",
        "{w}.unsqueeze_(0).squeeze_(0).mul_({b})",
        "{w}.transpose_(0, -1).transpose_(0, -1).mul_({b})",
        first=has_dims,
        others=fits,
    ),
    *rules("{w}[...] = {b}", others=same_shape),
    *rules("{w}[{i}] = {b}", first=has_dims, others=is_row),
    *rules(
        "{w}[{i}] += {b}",
        "{w}[{order}] = {b}",
        "{w}[{i}].mul_({b})",
        first=has_dims,
        others=fits_a_row,
    ),
    *rules("{w}.transpose(0, -1)[..., {i}].add_({b}.mean())", first=has_dims),
    *rules("{w}.index_add_({d}, {order}, {b})", first=has_dims, others=same_shape),
]

# The same values in another memory layout. contiguous() returns its argument itself where that is
# contiguous, which a batch and one sample of it may differ in, so neither may be written to.
LAYING = [
    *rules(
        "{a}.mT.contiguous().mT",
        "{a}.transpose(0, -1).contiguous()",
        first=has_two_dims,
        seals=True,
    ),
    Rule("torch.stack(({a}, {b}), -1)[..., 0]", first=has_two_dims, others=same_shape),
    *rules("torch.complex({a}, -{a}).conj().imag", first=is_real, seals=True),
    Rule("{a}.conj().resolve_conj()", first=is_complex, seals=True),
]

CALLS = [
    *rules(
        "Cube.apply({a})",
        "Tanh.apply({a})",
        "Scaled.apply({a}, 1.5)",
        "SineInside.apply({a})",
        "VmapInside.apply({a})",
        first=is_real,
        seals=True,
    ),
    Rule("Product.apply({a}, {b})", first=is_real, others=same_shape, seals=True),
]

# torch.func rejects them.
OLD_CALLS = rules("Old.apply({a})", "OldWithVmap.apply({a}.tanh())", first=is_real, seals=True)

# torch.func treats the inner Function's result as a constant if a jvp is around it.
OUR_CALLS = rules(
    "FunctionInside.apply({a})",
    "Weighted.apply({a}, Table(K))",
    "Weighted.apply({a}, Table(torch.ones(2)))",
    "Weighted.apply({a}, Table(torch.full_like({a}, 0.5)))",
    "Weighted.apply({a}, Table(torch.zeros_like({a}).sub_(0.5)))",
    first=is_real,
    seals=True,
)

SCRIPT_CALLS = rules("scripted({a})", "traced({a})", "frozen({a})", first=is_real, seals=True)

# Contiguous where the numbers are drawn in memory order.
DRAWS = [
    *rules(
        "{a} * torch.rand({shape}, dtype=torch.float64)",
        "{a} + torch.randn({shape}, dtype=torch.float64)",
        "{a} * torch.randint(1, 4, {shape})",
        "{a} * torch.rand_like({a}.contiguous())",
        "{a} * torch.empty({shape}, dtype=torch.float64).uniform_()",
        "{a} * torch.empty_like({a}.contiguous()).exponential_().tanh()",
        "{a} * torch.zeros_like({a}.contiguous()).bernoulli_(0.4)",
        "{a} * torch.bernoulli({a}.contiguous().sigmoid())",
        "{a} + torch.normal({a}.contiguous(), 0.5)",
        "torch.dropout({a}.contiguous(), 0.3, True)",
        "torch.nn.functional.alpha_dropout({a}.contiguous(), 0.3, True)",
        # It draws for negative elements only; where samples differ in their signs, they would
        # differ in what they draw next.
        "torch.nn.functional.rrelu((-1 - {a} * {a}).contiguous(), training=True)",
        first=is_real,
    ),
    *rules(
        "{a}[..., torch.randperm({columns})]",
        "{a}[torch.multinomial({a}.contiguous().sigmoid(), 1)]",
        first=is_real_vector,
    ),
    *rules("torch.feature_dropout({a}.contiguous(), 0.3, True)", first=has_two_real_dims),
]

# Operators that change the dtype.
CASTS = [
    *rules(
        "{a}.to(torch.float32)",
        "{a}.to(torch.float64)",
        "{a}.to(torch.bfloat16)",
        "torch.view_as_real(torch.fft.fft({a}))",
        first=is_real,
        seals=True,
    ),
    Rule("torch.complex({a}, {b})", first=is_real, others=same_shape, seals=True),
    *rules(
        "{a}.real",
        "{a}.imag",
        "{a}.conj()",
        "{a} * {a}.conj()",
        "torch.view_as_real({a}.resolve_conj())",
        first=is_complex,
        seals=True,
    ),
    *rules("{a} * K", "K + {a}", "{a} - K.sum()", "torch.where(K > {t}, {a}, K)"),
]

# What reads values: those of the constant, which no vmap batches.
READS = rules(
    "{a}.sin() if K.abs().sum() > 1.2345 else {a} + K.sum()",
    "{a} * K.abs().mean().item()",
    "{a} / 1.5 if int(K.abs().sum()) % 2 else {a} - 0.5",
    "{a} * K.abs()[K.abs() > 0.6789].sum().tanh()",
)

FAMILIES = [
    POINTWISE,
    BROADCASTING,
    VIEWS,
    OTHER_VIEWS,
    COPIES,
    REDUCTIONS,
    PRODUCTS,
    INDEXING,
    WRITES,
    LAYING,
]

# nan, infinities, zeros of both signs, denormals and ties.
AT_SPECIAL_VALUES = [
    rules(
        "{a}.sqrt()",
        "{a}.rsqrt()",
        "{a}.log()",
        "{a}.log1p()",
        "{a}.log2()",
        "{a}.reciprocal()",
        "1 / {a}",
        "{a} ** 0.5",
        "{a} ** 2",
        "{a} ** -1.5",
        "2 ** {a}",
        "{a}.abs()",
        "{a}.sign()",
        "{a}.exp()",
        "{a}.expm1()",
        "{a}.sin()",
        "{a}.tan()",
        "{a}.tanh()",
        "{a}.atan()",
        "{a}.asinh()",
        "{a}.sigmoid()",
        "{a}.erf()",
        "{a}.relu()",
        "{a}.clamp(-0.5, 1)",
        "{a}.clamp(min=0)",
        "{a}.nan_to_num()",
        "{a}.sinc()",
        "{a}.square()",
        "{a}.round()",
        "{a}.frac()",
        "torch.nn.functional.gelu({a})",
        "torch.nn.functional.silu({a})",
        "torch.nn.functional.mish({a})",
        "torch.nn.functional.softplus({a})",
        "torch.nn.functional.elu({a})",
        "torch.nn.functional.leaky_relu({a})",
        "torch.nn.functional.hardtanh({a})",
        "torch.nn.functional.logsigmoid({a})",
        "torch.nn.functional.huber_loss({a}, K)",
    ),
    rules(
        "{a} + {b}",
        "{a} - {b}",
        "{a} * {b}",
        "{a} / {b}",
        "{a} ** {b}",
        "torch.atan2({a}, {b})",
        "torch.hypot({a}, {b})",
        "torch.maximum({a}, {b})",
        "torch.minimum({a}, {b})",
        "torch.fmax({a}, {b})",
        "torch.fmin({a}, {b})",
        "torch.copysign({a}, {b})",
        "torch.xlogy({a}, {b})",
        "torch.logaddexp({a}, {b})",
        "torch.where({a} > {b}, {a}, {b})",
        "torch.where({a}.isnan(), 0, {b})",
        "{a}.masked_fill({b} <= 0, 0.5)",
        "{a}.clamp({b})",
        "{a}.fmod({b})",
        "{a}.remainder({b})",
        others=broadcast,
    ),
    [
        *rules("{a}.sum()", "{a}.mean()", "{a}.norm()", "{a}.amax()", "{a}.max()", "{a}.prod()"),
        *rules(
            "{a}.sum({d})",
            "{a}.amax({d})",
            "{a}.amin({d}, keepdim=True)",
            "{a}.aminmax(dim={d}).max",
            "{a}.max({d}).values",
            "{a}.min({d}).values",
            "{a}.median({d}).values",
            "{a}.sort({d}).values",
            "{a}.topk(1, {d}).values",
            "{a}.cummax({d}).values",
            "{a}.cumsum({d})",
            "{a}.cumprod({d})",
            "{a}.prod({d})",
            "{a}.var({d}, correction=0)",
            "{a}.norm(dim={d})",
            "{a}.norm(float('inf'), {d})",
            "{a}.logsumexp({d})",
            "{a}.softmax({d})",
            "{a}.log_softmax({d})",
            first=has_dims,
        ),
    ],
]
