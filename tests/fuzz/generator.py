"""Writes a program line by line.

Every line runs immediately on example tensors that require gradients. Shapes, dtypes, aliases, and
what derivatives need are read off those, so that rules need not specify them and every program is
valid.

NOTE [What may be written to]
Fresh tensors and their views, while autograd needs their values for no derivative; but not a view
from before its memory became differentiable, which autograd takes for a leaf from then on. Inside
vmap, a batched value must not be written to an unbatched tensor: torch.func doesn't allow it.
"""

import dataclasses
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.fuzz.functions import FUNCTIONS
from tests.fuzz.rules import FRESH, VIEWS, WRITES, Rule
from tests.fuzz.values import APART, Value, sparse


@dataclasses.dataclass(eq=False)
class Operand:
    """An operand of a line: a variable, the constant, or the result of an earlier line."""

    name: str
    example: Tensor
    # The innermost variables that its value and its gradient depend on.
    value_of: int = 0
    gradient_of: int = 0
    # Whether it is a view from before its memory became differentiable by an inner variable.
    is_stale: bool = False

    @property
    def memory(self) -> int:
        return self.example.untyped_storage()._cdata


LARGEST = 3.0  # larger values are squashed

CLASSES: dict[str, Any] = {"torch": torch}
exec("\n".join(FUNCTIONS.values()), CLASSES)

# Since 2.15 torch promotes bfloat16 and complex numbers to it, and can neither add nor multiply it.
WITHOUT_KERNELS = "torch.bcomplex32"
REFUSALS = (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError, Warning)


class Writer:
    """Writes a program of these variables and the constant.

    batches: how many vmaps batch each variable. Without ``strict``, a line that torch rejects
    because of its operands' dtypes or lack of elements is skipped.
    """

    def __init__(
        self,
        draw: st.DrawFn,
        variables: list[Value],
        constant: Value,
        batches: list[int],
        families: list[list[Rule]],
        strict: bool,
    ) -> None:
        torch.manual_seed(0)  # the examples' random draws affect which lines are written
        self.draw = draw
        self.batches = batches
        self.families = families
        self.strict = strict
        self.special = variables[0].special
        self.shares_memory = variables[0].layout.startswith("expanded")
        self.low_precision = any(
            value.dtype not in ("float64", "bool", "int64") for value in [*variables, constant]
        )
        self.lines: list[str] = []
        self.names = {"torch": torch, "APART": APART, "K": constant.tensor(), **sparse(), **CLASSES}
        self.operands = [Operand("K", self.names["K"])]
        for i, value in enumerate(variables):
            self.names[f"x{i}"] = value.tensor().requires_grad_(i > 0)
            self.operands.append(Operand(f"x{i}", self.names[f"x{i}"], i, i))
        self.sealed = {operand.memory for operand in self.operands}
        self.unread: list[Operand] = []

    def add_lines(self) -> None:
        family = self.draw(st.sampled_from(self.families))
        if family is not WRITES:
            self.add_line(family, self.operands)
            return
        if not self.writable():
            self.add_line(FRESH, self.operands)
        if self.draw(st.booleans()):
            self.add_line(VIEWS, self.writable())
        self.add_line(WRITES, self.writable())

    def add_line(self, family: list[Rule], firsts: list[Operand]) -> None:
        """Adds a line by a rule whose first operand is one of these; adds none if no rule fits."""
        usable = [rule for rule in family if self.choices(rule, [], firsts)]
        if not usable:
            return
        rule = self.draw(st.sampled_from(usable))
        chosen: list[Operand] = []
        while len(chosen) < len(rule.operands):
            latest = self.choices(rule, chosen, firsts)[::-1]
            chosen.append(self.draw(st.sampled_from(latest[:3] + latest)))
        fields = self.fields(rule, chosen)
        if fields is None:
            return
        text = rule.text.format(**fields)
        try:
            if rule.writes:
                result = self.write(text, chosen, rule.through_view)
            else:
                result = self.assign(text, chosen)
        except REFUSALS:
            if self.strict:
                raise
            return
        if rule.seals:
            self.sealed.update(operand.memory for operand in [*chosen, result])
        elif rule.writes:
            self.sealed.update(operand.memory for operand in chosen[1:])
        if self.special or not result.example.numel() or result.example.dtype == torch.bool:
            return
        largest = result.example.abs().max().item()
        if largest > LARGEST:
            # Complex numbers are divided: no function bounds them, and sin grows as exp does.
            is_complex = result.example.is_complex()
            squash, its_argument = ("div", f"{largest:.3g}") if is_complex else ("sin", "")
            if rule.writes and not is_complex and not result.example.is_floating_point():
                squash, its_argument = "remainder", "7"  # an integer stays one
            if not rule.writes:
                self.assign(f"{result.name}.{squash}({its_argument})", [result])
            elif not result.is_stale:
                self.write(f"{result.name}.{squash}_({its_argument})", [result])

    def add_return(self) -> Tensor:
        """Returns the last value, plus the sums of all other unused values."""
        *others, last = self.unread or self.operands[-1:]
        result = " + ".join([last.name, *(f"{operand.name}.sum()" for operand in others)])
        try:
            example: Tensor = eval(result, self.names)
        except REFUSALS:
            if self.strict:
                raise
            result, example = last.name, last.example
        if example.is_complex():
            result = f"torch.view_as_real(({result}).resolve_conj()).sum(-1)"
        self.lines.append(f"return {result}")
        example = eval(result, self.names)
        return example

    def choices(self, rule: Rule, chosen: list[Operand], firsts: list[Operand]) -> list[Operand]:
        """Candidates for the rule's next operand."""
        if not chosen:
            fitting = [
                operand
                for operand in firsts
                if rule.first(operand.example) and self.is_fit(operand, rule)
            ]
            if len(rule.operands) > 1:
                fitting = [operand for operand in fitting if self.choices(rule, [operand], firsts)]
            return fitting
        examples = [operand.example for operand in chosen]
        return [
            operand
            for operand in self.operands
            if rule.others(*examples, operand.example)
            and self.is_fit(operand, rule)
            and not (rule.writes and not self.may_be_written(operand, chosen[0]))
        ]

    def is_fit(self, operand: Operand, rule: Rule) -> bool:
        """NOTE [Well-conditioned programs]."""
        if self.shares_memory and "as_strided" in rule.text:
            # Its derivative by elements in the same memory is their mean. A copy has no such
            # elements, and differences are taken at copies.
            return False
        if self.special:
            return True
        if operand.example.is_complex() or (rule.has_threshold and self.low_precision):
            return rule.is_entire
        return True

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

    def fields(self, rule: Rule, chosen: list[Operand]) -> dict[str, Any] | None:
        """The values for the rule's fields; None if it needs an element and there is none.

        These are the operands and, where the rule asks for them,

        {d}: a dimension of the first operand; and of that dimension (the first one without {d}),
        {i}: an index; {p}: one that is not negative; {index}: a tensor of indices; {order}: a
        permutation of all of them;
        {rows}, {columns}: the first and the last dimension's size; {shape}; {t}: a number to
        compare with.
        """
        example = (chosen or self.operands)[0].example
        fields: dict[str, Any] = {
            field: operand.name for field, operand in zip(rule.operands, chosen, strict=True)
        }
        fields["shape"] = tuple(example.shape)
        fields["t"] = f"{0.0517 + 0.0103 * len(self.lines):.4f}"
        fields["rows"] = example.shape[0] if example.dim() else 1
        fields["columns"] = example.shape[-1] if example.dim() else 1
        if example.dim() == 0:
            return fields

        def draw(field: str, strategy: st.SearchStrategy[Any]) -> None:
            if f"{{{field}}}" in rule.text:
                fields[field] = self.draw(strategy)

        draw("d", st.integers(-example.dim(), example.dim() - 1))
        size = example.shape[fields.get("d", 0)]
        if size == 0:
            wanted = ("{i}", "{p}", "{index}", "{order}")
            return None if any(field in rule.text for field in wanted) else fields
        indices = st.integers(0, size - 1)
        draw("i", st.integers(-size, size - 1))
        draw("p", indices)
        draw("index", st.lists(indices, min_size=1, max_size=3).map("torch.tensor({})".format))
        draw("order", st.permutations(range(size)).map("torch.tensor({})".format))
        return fields

    def assign(self, text: str, chosen: list[Operand]) -> Operand:
        """A line that names this value, as a new operand."""
        name = f"t{len(self.lines)}"
        self.execute(f"{name} = {text}", chosen, name)
        example = self.names[name]
        value_of = max((operand.value_of for operand in chosen), default=0)
        gradient_of = max((operand.gradient_of for operand in chosen), default=0)
        operand = Operand(name, example, value_of, gradient_of if example.requires_grad else 0)
        self.operands.append(operand)
        self.unread.append(operand)
        return operand

    def write(self, text: str, chosen: list[Operand], through_view: bool = False) -> Operand:
        """A line that writes to the first operand, and so to all operands that share its memory."""
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

    def execute(self, line: str, chosen: list[Operand], name: str = "") -> None:
        exec(line, self.names)
        if name and str(self.names[name].dtype) == WITHOUT_KERNELS:
            raise TypeError(f"{line}: torch can't compute with {WITHOUT_KERNELS}")
        self.lines.append(line)
        self.unread = [operand for operand in self.unread if operand not in chosen]


def _saved_by(tensor: Tensor) -> set[int]:
    """The memory of all tensors that a backward from this tensor needs."""
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
                    each.untyped_storage()._cdata
                    for each in tensors
                    if isinstance(each, Tensor) and each.layout is torch.strided
                }
    return memory
