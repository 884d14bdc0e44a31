"""Random programs under random stacks of transforms, and a Hypothesis strategy for them.

A Case is Python source: a function for each level of the stack, each of which transforms the
next, and the program as the last one. That text is what runs, and what a failing test prints
(as Case.script).

A program is written line by line, and every line runs at once, on example tensors that require
gradients. Shapes, aliases, and what derivatives need are read off those, so that no rule has to
say them, and every program is valid.

NOTE [Well-conditioned programs]
Programs are compared up to fourth derivatives, so a rounding error has to stay one. Values that
grow are squashed. Denominators, and the arguments of roots and logarithms, stay away from zero.
What compares (where, clamp) does so with an odd number of its own, so that no value computed in
two ways is on both sides of it. What orders (sort, max) has its elements put APART first. The
levels are linear in the derivatives that they pass on.

NOTE [What may be written to]
Fresh tensors and their views, while autograd needs their values for no derivative; but not a
view from before its memory became differentiable, which autograd takes for a leaf from then on.
Inside vmap, what is written must not be batched where the tensor it is written to isn't:
torch.func doesn't allow it.

NOTE [Left out]
What torch itself gets wrong, in torch.func as much as here: layer_norm (third derivatives, and
second ones with jvp inside), select_scatter (the gradient of its batching rule), addcmul_ and
lerp_ (vmap in vmap, with an operand of the outer one's), and the assignment of a tensor without
dimensions to a part that has some (vmap of jvp, to what has no tangent). And logcumsumexp: its
backward takes the cotangent's logarithm, and the reference has one of zeros.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

KINDS = ("grad", "vjp", "jvp", "vmap")


@dataclasses.dataclass(frozen=True)
class Level:
    """A transform in a stack: one of KINDS or jacrev, of the library that goes by this name."""

    kind: str
    library: str
    in_dim: int = 0
    out_dim: int = 0

    def body(self, x: str, inner: str, y: str) -> Iterator[str]:
        """The lines that transform ``inner``, a function of ``y``, at ``x``.

        All use ``x`` inside as well: a constant to this level, a variable to those around it.
        """
        weight = f"{x}.mean().cos()"
        if self.kind == "grad":
            yield f"return {self.library}.grad(lambda {y}: ({inner} * {weight}).sum())({x})"
        elif self.kind == "vjp":
            yield f"value, pull_back = {self.library}.vjp(lambda {y}: {inner} * {weight}, {x})"
            yield f"return pull_back({weight}.expand(value.shape))[0] + value.mean()"
        elif self.kind == "jvp":
            function = f"lambda {y}: {inner} * {weight}"
            yield f"value, tangent = {self.library}.jvp({function}, ({x},), ({x}.sin(),))"
            yield "return value + tangent"
        elif self.kind == "jacrev":
            yield f"jacobian = {self.library}.jacrev(lambda {y}: {inner} * {weight})({x})"
            yield f"return jacobian.reshape(-1, *{x}.shape).sum(0)"
        else:
            dims = f"in_dims={self.in_dim}, out_dims={self.out_dim}"
            yield f"return {self.library}.vmap(lambda {y}: {inner} * {weight}, {dims})({x})"


@dataclasses.dataclass(frozen=True)
class Case:
    """A program under a stack of levels, outermost first.

    The program is a function of the variables of all levels, x0 (of the given shape) to that of
    the innermost one; of a constant, K; and of APART.
    """

    levels: tuple[Level, ...]
    shape: tuple[int, ...]
    constant_shape: tuple[int, ...]
    program: tuple[str, ...]

    @property
    def source(self) -> str:
        """f0, a function of x0, and the functions that it calls; the last is the program."""
        lines = []
        names = [f"x{i}" for i in range(len(self.levels) + 1)]
        for i, level in enumerate(self.levels):
            inner = f"f{i + 1}({', '.join(names[: i + 2])})"
            lines.append(f"def f{i}({', '.join(names[: i + 1])}):")
            lines += [f"    {line}" for line in level.body(names[i], inner, names[i + 1])]
        lines.append(f"def f{len(self.levels)}({', '.join(names)}):")
        lines += [f"    {line}" for line in self.program]
        return "\n".join(lines)

    def in_torch_func(self) -> "Case":
        """The same in torch.func alone, which errs for some out_dims but 0."""
        levels = [Level(level.kind, "func", level.in_dim) for level in self.levels]
        return dataclasses.replace(self, levels=tuple(levels))

    def run(self, **libraries: Any) -> Tensor:
        """f0's result, with these libraries under the names that the levels use."""
        names = {**constants(self.constant_shape), **libraries}
        exec(compile(self.source, "<random program>", "exec"), names)
        result: Tensor = names["f0"](point(self.shape))
        return result

    @property
    def script(self) -> str:
        """The same as a file that can be run by itself."""
        return f"""
import torch
import torch.func as func
import torchlayers as tl

K = {_literal(point(self.constant_shape, 0.3))}
APART = {_literal(APART)}

{self.source}

print(f0({_literal(point(self.shape))}))
"""


def point(shape: tuple[int, ...], start: float = 0.0) -> Tensor:
    """Values between -1 and 1, all different and with few digits."""
    values = [round((start + i * 0.618034) % 1 * 2 - 1, 4) for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


# To add to a tensor whose elements have to have an order that no rounding error changes.
APART = torch.tensor([0.0, 6.0, 3.0, 15.0, 9.0, 12.0], dtype=torch.float64)


def constants(shape: tuple[int, ...]) -> dict[str, Any]:
    """What a program finds outside of all functions."""
    return {"torch": torch, "K": point(shape, 0.3), "APART": APART}


def _literal(values: Tensor) -> str:
    return f"torch.tensor({values.tolist()}, dtype=torch.float64)"


# What a rule may ask: of its first operand, and of each further one after those before it.


def anything(*operands: Tensor) -> bool:
    return True


def has_dims(a: Tensor) -> bool:
    return a.dim() > 0


def has_two_dims(a: Tensor) -> bool:
    return a.dim() > 1


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
    if a.dim() == 0 or b.dim() == 0 or max(a.numel(), b.numel()) > 9:
        return False
    inner = b.shape[0] if b.dim() == 1 else b.shape[-2]
    return a.shape[-1] == inner and _broadcast(a.shape[:-2], b.shape[:-2])


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

    {a}, {b} and {c} are operands, and {w} is one to write to; for the others see _Writer.fields.
    """

    text: str
    first: Callable[..., bool] = anything
    others: Callable[..., bool] = anything
    # Nothing may be written any more to the operands and the result; of a rule that writes,
    # to {w}.
    seals: bool = False

    @property
    def operands(self) -> str:
        return "".join(name for name in "wabc" if f"{{{name}}}" in self.text)

    @property
    def writes(self) -> bool:
        return self.operands.startswith("w")

    @property
    def through_view(self) -> bool:
        """Not to {w} itself, but to a view of it that the rule makes."""
        return self.text.startswith(("{w}[", "{w}.transpose"))


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
        first=has_dims,
    ),
    *rules("{a}.mT", "{a}.diagonal()", "{a}[:, None, 0]", first=has_two_dims),
    *rules("{a}.unsqueeze(-1)", "{a}[None]", first=can_grow),
]

# Their memory overlaps, or torch allows no writing to them, or they are copies at times.
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
        "(2 + {a}.sin()).prod({d})",
        "(2 + {a}.sin()).cumprod({d})",
        "{a}.softmax({d})",
        "{a}.log_softmax({d})",
        first=has_dims,
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
    # These are saved themselves.
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
]


@dataclasses.dataclass(eq=False)
class Operand:
    """What a line may use: a variable, the constant, or what a line before it made."""

    name: str
    example: Tensor
    # The innermost variables that its value and its gradient depend on.
    value_of: int = 0
    gradient_of: int = 0
    # It is a view, from before its memory became differentiable by an inner variable.
    is_stale: bool = False

    @property
    def memory(self) -> int:
        return self.example.untyped_storage()._cdata


LARGEST = 3.0  # beyond it a value is squashed


class _Writer:
    """Writes a program of variables of these shapes. batches: how many vmaps batch each of them."""

    def __init__(self, draw: st.DrawFn, shapes: list[tuple[int, ...]], batches: list[int]) -> None:
        self.draw = draw
        self.batches = batches
        self.lines: list[str] = []
        self.names = constants(shapes[-1])
        self.operands = [Operand("K", self.names["K"])]
        for i, shape in enumerate(shapes):
            self.names[f"x{i}"] = point(shape).requires_grad_(i > 0)
            self.operands.append(Operand(f"x{i}", self.names[f"x{i}"], i, i))
        self.sealed = {operand.memory for operand in self.operands}
        self.unread: list[Operand] = []

    def add_lines(self) -> None:
        family = self.draw(st.sampled_from(FAMILIES))
        if family is not WRITES:
            self.add_line(family, self.operands)
            return
        if not self.writable():
            self.add_line(FRESH, self.operands)
        if self.draw(st.booleans()):
            self.add_line(VIEWS, self.writable())
        self.add_line(WRITES, self.writable())

    def add_line(self, family: list[Rule], firsts: list[Operand]) -> None:
        """Adds a line by a rule whose first operand is one of these; none where no rule fits."""
        usable = [rule for rule in family if self.choices(rule, [], firsts)]
        if not usable:
            return
        rule = self.draw(st.sampled_from(usable))
        chosen: list[Operand] = []
        while len(chosen) < len(rule.operands):
            latest = self.choices(rule, chosen, firsts)[::-1]
            chosen.append(self.draw(st.sampled_from(latest[:3] + latest)))
        text = rule.text.format(**self.fields(rule, chosen))
        if rule.writes:
            result = self.write(text, chosen, rule.through_view)
        else:
            result = self.assign(text, chosen)
        if rule.seals:
            self.sealed.update(operand.memory for operand in [*chosen, result])
        elif rule.writes:
            self.sealed.update(operand.memory for operand in chosen[1:])
        if result.example.abs().max() > LARGEST:
            if not rule.writes:
                self.assign(f"{result.name}.sin()", [result])
            elif not result.is_stale:
                self.write(f"{result.name}.sin_()", [result])

    def add_return(self) -> Tensor:
        """Returns the last value, plus the sums of all others that nothing has read."""
        *others, last = self.unread or self.operands[-1:]
        result = " + ".join([last.name, *(f"{operand.name}.sum()" for operand in others)])
        self.lines.append(f"return {result}")
        example: Tensor = eval(result, self.names)
        return example

    def choices(self, rule: Rule, chosen: list[Operand], firsts: list[Operand]) -> list[Operand]:
        """What may be the rule's next operand."""
        if not chosen:
            fitting = [operand for operand in firsts if rule.first(operand.example)]
            if len(rule.operands) > 1:
                fitting = [operand for operand in fitting if self.choices(rule, [operand], firsts)]
            return fitting
        examples = [operand.example for operand in chosen]
        return [
            operand
            for operand in self.operands
            if rule.others(*examples, operand.example)
            and not (rule.writes and not self.may_be_written(operand, chosen[0]))
        ]

    def writable(self) -> list[Operand]:
        """NOTE [What may be written to]."""
        closed = self.sealed.union(*(_saved_by(operand.example) for operand in self.operands))
        return [
            operand
            for operand in self.operands
            if operand.memory not in closed and not operand.is_stale
        ]

    def may_be_written(self, source: Operand, target: Operand) -> bool:
        return (
            source.memory != target.memory
            and self.batches[source.value_of] <= self.batches[target.value_of]
        )

    def fields(self, rule: Rule, chosen: list[Operand]) -> dict[str, Any]:
        """What replaces the fields of the rule: the operands and, where it asks for them,

        {d}: a dimension of the first operand; and of that dimension (the first one without {d}),
        {i}: an index; {p}: one that is not negative; {index}: a tensor of indices; {order}: one
        that has them all once;
        {columns}: the last dimension's size; {shape}; {t}: a number to compare with.
        """
        example = (chosen or self.operands)[0].example
        fields: dict[str, Any] = {
            field: operand.name for field, operand in zip(rule.operands, chosen, strict=True)
        }
        fields["shape"] = tuple(example.shape)
        fields["t"] = f"{0.0517 + 0.0103 * len(self.lines):.4f}"
        if example.dim() == 0:
            return fields

        def draw(field: str, strategy: st.SearchStrategy[Any]) -> None:
            if f"{{{field}}}" in rule.text:
                fields[field] = self.draw(strategy)

        draw("d", st.integers(-example.dim(), example.dim() - 1))
        size = example.shape[fields.get("d", 0)]
        indices = st.integers(0, size - 1)
        draw("i", st.integers(-size, size - 1))
        draw("p", indices)
        draw("index", st.lists(indices, min_size=1, max_size=3).map("torch.tensor({})".format))
        draw("order", st.permutations(range(size)).map("torch.tensor({})".format))
        fields["columns"] = example.shape[-1]
        return fields

    def assign(self, text: str, chosen: list[Operand]) -> Operand:
        """A line that names this value, as a new operand."""
        name = f"t{len(self.lines)}"
        self.execute(f"{name} = {text}", chosen)
        example = self.names[name]
        value_of = max((operand.value_of for operand in chosen), default=0)
        gradient_of = max((operand.gradient_of for operand in chosen), default=0)
        operand = Operand(name, example, value_of, gradient_of if example.requires_grad else 0)
        self.operands.append(operand)
        self.unread.append(operand)
        return operand

    def write(self, text: str, chosen: list[Operand], through_view: bool = False) -> Operand:
        """A line that writes to the first operand, and so to all that share its memory."""
        self.execute(text, chosen)
        target, *sources = chosen
        gradient_of = max((operand.gradient_of for operand in sources), default=0)
        for operand in self.operands:
            if operand.memory == target.memory:
                if gradient_of > operand.gradient_of:
                    operand.gradient_of = gradient_of
                    written_itself = operand is target and not through_view
                    operand.is_stale = operand.example._is_view() and not written_itself
                self.unread = [*(other for other in self.unread if other is not operand), operand]
        return target

    def execute(self, line: str, chosen: list[Operand]) -> None:
        exec(line, self.names)
        self.lines.append(line)
        self.unread = [operand for operand in self.unread if operand not in chosen]


def _saved_by(tensor: Tensor) -> set[int]:
    """The memory of all that a backward from this tensor needs."""
    memory = set()
    nodes: list[Any] = [tensor.grad_fn]
    met = {None}
    while nodes:
        node = nodes.pop()
        if node in met:
            continue
        met.add(node)
        nodes += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_"):
                saved = getattr(node, name)
                tensors = saved if isinstance(saved, (tuple, list)) else [saved]
                memory |= {
                    each.untyped_storage()._cdata for each in tensors if isinstance(each, Tensor)
                }
    return memory


@st.composite
def cases(
    draw: st.DrawFn,
    depth: int,
    libraries: tuple[str, ...],
    kinds: tuple[str, ...] | None = None,
) -> Case:
    """Cases of so many levels, each of one of these libraries; of these kinds, or of any."""
    drawn = kinds or [draw(st.sampled_from(KINDS)) for _ in range(depth)]
    levels = [Level(kind, draw(st.sampled_from(libraries))) for kind in drawn]
    # The variables' shapes, from the innermost out: every vmap has a dimension more outside.
    shapes = [tuple(draw(st.lists(st.integers(1, 3), max_size=2)))]
    for i in reversed(range(depth)):
        shape = list(shapes[0])
        if levels[i].kind == "vmap":
            in_dim = draw(st.integers(-len(shape) - 1, len(shape)))
            levels[i] = dataclasses.replace(levels[i], in_dim=in_dim)
            shape.insert(in_dim % (len(shape) + 1), draw(st.integers(1, 3)))
        shapes.insert(0, tuple(shape))

    batches = [sum(level.kind == "vmap" for level in levels[:i]) for i in range(depth + 1)]
    writer = _Writer(draw, shapes, batches)
    for _ in range(draw(st.integers(1, 10))):
        writer.add_lines()

    # And the results' ranks, likewise.
    rank = writer.add_return().dim()
    for i in reversed(range(depth)):
        if levels[i].kind == "vmap":
            # torch.func errs in all others, for a result that does not depend on the batch.
            if levels[i].library != "func":
                out_dim = draw(st.integers(-rank - 1, rank))
                levels[i] = dataclasses.replace(levels[i], out_dim=out_dim)
            rank += 1
        elif levels[i].kind != "jvp":
            rank = len(shapes[i])
    return Case(tuple(levels), shapes[0], shapes[-1], tuple(writer.lines))
