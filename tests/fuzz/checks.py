"""What a Case has to compute, and which errors are allowed."""

import dataclasses
import re

import torch
import torch.func
from torch import Tensor

import torchlayers as tl
from tests.fuzz.case import Case
from tests.fuzz.oracles import Differences, Plain
from tests.support.calls import ambient

# Errors that are allowed if torch.func raises too. A Case with layers of torch.func may raise any.
REFUSALS = [
    # Tangents are written in place, by in-place operators and by some of torch's formulas (std,
    # norm), even where outer derivatives need them.
    "modified by an inplace operation",
    # The same holds for an expanded primal's tangent, which shares no memory.
    "its elements share memory",
    "refers to a single memory location",
    # A tensor created like a captured one is not functional, but a value written to it is.
    "mutating a non-functional tensor with a functional tensor",
    # Some of torch's batching rules need at least one element.
    "cannot reshape tensor of 0 elements",
    "select(): index 0 out of range for tensor of size",
]

# Errors of plain autograd that we need not raise.
NOT_PLAIN = [
    "modified by an inplace operation",
    # From the derivatives of atan2 and logaddexp, which negate and subtract constants.
    "on a bool tensor is not supported",
    "with a bool tensor is not supported",
]
# Errors that are allowed in compile: of captures, and of torch's fake kernel for the largest of
# each row if there are no rows, which the CPU's kernel takes.
NOT_RECORDED = ["conjugated lazily", "one of which is meta", "does not have an identity"]
# Of torch's fake kernels for tensors without elements: a mean's factor, and dtypes that the CPU's
# kernel of a product does not compare there.
OF_NO_ELEMENTS = ["float division by zero", "expected scalar type"]
# Known bugs, by their error message.
KNOWN = [
    "has_fw_view()",  # torch.func's jvp inside one of ours, at a primal with the negative bit
    "can't run aten::copy_",  # jvp in vmap, at a primal whose batch is expanded
    "not implemented for 'BComplex32'",  # of torch 2.15: fuzz/generator.py, WITHOUT_KERNELS
]
# Also a nest of both kinds of checkpoint, one of which captures the other's argument in a grad.
OF_CHECKPOINTS = "was used in vmap (level"
# A Function that reads a constant from an object, in backward, when a transform that the constant
# was made in has ended, and there is a layer in Python: what it was below that only it could tell.
OF_LAYERS = "backward uses a captured tensor of an enclosing transform"
# Where torch's derivative squares small numbers, which underflow to zero, and ours does not.
# tests/rules/special_values checks ours there.
WITHOUT_SQUARES = ["atan2"]
# Where torch's kernel gives nan in whole vectors and a number after them: 1 modulo 1e-310.
DIFFERS_IN_VECTORS = [".fmod(", ".remainder("]
# Where torch's derivatives may be nan instead of a limit. The derivative by a factor is the product
# of the others, and that by a replaced nan is zero; torch's divides by the factor, and multiplies
# zero by infinity.
LIMITS = ["prod(", "nan_to_num"]
# The second ones, as listed in tests/rules/special_values/differences.py.
LIMITS_OF_SECOND = ["logaddexp", "functional.gelu(", "functional.mish(", "functional.softplus("]
LIMITS_OF_SECOND += ["functional.elu(", "copysign", "2 ** ", "sinc()"]
# A power of two tensors, whose second derivatives at 0 ** 0 are not torch's: as listed there.
POWER_OF_TENSORS = r"\w \*\* [a-zA-Z]"
# Their slopes have no derivative: a term that is absent here, and in torch zero, which times nan or
# infinity is nan.
PIECEWISE_LINEAR = [".abs()", ".relu()", "leaky_relu", "hardtanh", ".clamp("]
# They choose elements, none of which is chosen at nan. The tangent of one that is not chosen is
# masked, where torch multiplies it by zero: docs/forward-mode.md, "Where there is no derivative".
MASKED = ["norm(float('inf')"]


# What torch computes wrong, as patterns in a program, and what it computes right.
MEDIAN = (r"(\w+)\.(nan)?median\(", r"\1.contiguous().\2median(")  # of an expanded tensor
# The derivative by the base has none by the exponent where the exponent is zero. (At a nan, the
# power differs.)
POWER = (r"\(2 \+ (\w+\.sin\(\))\) \*\* (\w+\.tanh\(\))", r"((2 + \1).log() * \2).exp()")
# At a nan, reverse mode gives both arguments all of the derivative; forward mode has one of them.
EXTREMUM = (
    r"torch\.(max|min)imum\((\w+), (\w+)\)",
    r"torch.where(\2.isnan() | \3.isnan(), \2 + \3, torch.\1imum(\2, \3))",
)


def attempt(case: Case, **libraries: object) -> Tensor | Exception:
    try:
        return case.run(**libraries)
    except Exception as error:
        return error


def by_torch(case: Case, *libraries: str) -> Case:
    """The case with transforms of these libraries, written so that torch computes it right."""
    program = case.program
    for pattern, replacement in (MEDIAN, EXTREMUM) if case.x.special else (MEDIAN, POWER):
        program = tuple(re.sub(pattern, replacement, line) for line in program)
    return dataclasses.replace(case.called(*libraries), program=program)


def ours(case: Case) -> Tensor | Exception:
    before = ambient()
    result = attempt(case, tl=tl, func=torch.func)
    assert tl.current_stack() == ()
    assert ambient() == before
    return result


def check(case: Case) -> None:
    result = ours(case)
    is_mixed = any(level.library == "func" for level in case.levels)
    if isinstance(result, Exception):
        if any(words in str(result) for words in KNOWN):
            return
        kinds = {level.kind for level in case.levels}
        if kinds >= {"checkpoint", "torch_checkpoint"} and OF_CHECKPOINTS in str(result):
            return
        if kinds & {"layer", "jet"} and "Table(" in str(case.program) and OF_LAYERS in str(result):
            return
        may_be = is_mixed or any(words in str(result) for words in REFUSALS)
        library = {"func": torch.func} if may_be else {"plain": Plain}
        if not isinstance(attempt(case.called(*library), **library), Exception):
            raise result
        return
    if is_mixed and re.search(POWER[0], str(case.program)):
        return  # torch.func differentiates it too
    expected = attempt(by_torch(case, "plain"), plain=Plain)
    if isinstance(expected, Tensor):
        compare(case, result, expected.detach())
    elif 0 not in case.x.shape and not any(words in str(expected) for words in NOT_PLAIN):
        raise expected


def compare(case: Case, result: Tensor, expected: Tensor) -> None:
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    if 0 in case.x.shape or 0 in case.constant.shape:
        torch.testing.assert_close(result, expected, equal_nan=True)  # empty means are nan
        return
    if "@" in str(case.program) and expected.is_complex() and not expected.isfinite().all():
        return  # torch's dot product of an expanded complex vector is wrong
    assert expected.isfinite().all()
    # Elements that cancel are only as precise as the largest one.
    scale = max(1.0, expected.abs().max().item())
    low = precision(case)
    if low == torch.float64:
        torch.testing.assert_close(result, expected, rtol=1e-7, atol=1e-9 * scale)
        return
    # No less precise than plain autograd in the same precision.
    twin = run_in_double(case)
    allowed = 8 * (expected - twin).abs().max().item() + 32 * scale * torch.finfo(low).eps
    torch.testing.assert_close(result.to(twin.dtype), twin, rtol=0, atol=allowed)


def precision(case: Case) -> torch.dtype:
    """The lowest precision in which any part of it is computed."""
    source = f"{case.x} {case.constant} {case.program}"
    if "bfloat16" in source:
        return torch.bfloat16
    # For integers, sin() and mean() return float32.
    singles = ("float32", "complex64", "int64'", "bool")
    return torch.float32 if any(name in source for name in singles) else torch.float64


def in_double(case: Case) -> Case:
    double = {"complex64": "complex128", "float32": "float64", "bfloat16": "float64"}
    x, constant = (
        dataclasses.replace(value, dtype=double.get(value.dtype, value.dtype))
        for value in (case.x, case.constant)
    )
    program = tuple(
        re.sub(r"torch\.(bfloat16|float32)", "torch.float64", line) for line in case.program
    )
    return dataclasses.replace(case, x=x, constant=constant, program=program)


def run_in_double(case: Case) -> Tensor:
    """The result of plain autograd in double precision, also of functions of integers.

    Those return the default dtype: without it a program that multiplies one by a tensor in single
    precision would be invalid in double.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return by_torch(in_double(case), "plain").run(plain=Plain).detach()
    finally:
        torch.set_default_dtype(default)


def check_compiled(case: Case, backend: str, check_first: bool = False) -> None:
    """Compares two calls of the compiled case with the uncompiled one.

    With check_first, compile also verifies its first result itself, which is its default.
    """
    expected = ours(case)
    if isinstance(expected, Exception):
        return  # check judges it
    compiled = tl.compile(case.function(tl=tl, func=torch.func), backend=backend, check=check_first)
    for _ in range(2):
        try:
            result = compiled(case.x.tensor())
        except (RuntimeError, ZeroDivisionError) as error:
            if any(words in str(error) for words in NOT_RECORDED):
                return
            is_empty = 0 in case.x.shape or 0 in case.constant.shape
            if is_empty and any(words in str(error) for words in OF_NO_ELEMENTS):
                return
            raise
        if case.x.special:
            torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-12, equal_nan=True)
        else:
            compare(case, result, expected.detach())


def check_against_differences(case: Case) -> None:
    """Compares with finite differences for the outermost derivative, and plain autograd inside."""
    derivatives = [i for i, level in enumerate(case.levels) if level.kind in dir(Differences)]
    if not derivatives or ".detach()" in str(case.program):
        return
    result = ours(case)
    if isinstance(result, Exception):
        return  # check judges it
    libraries = ["plain"] * derivatives[0] + ["differences", "plain"]
    expected = by_torch(case, *libraries).run(plain=Plain, differences=Differences).detach()
    assert result.shape == expected.shape
    known = ~expected.isnan()  # excludes means of empty tensors, and jumps
    result, expected = result[known], expected[known]
    scale = max([1.0, *expected.abs().tolist()])
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7 * scale)


def is_huge(values: Tensor) -> Tensor:
    return values.isfinite() & (values.abs() > 1e200)


def check_special(case: Case) -> None:
    """Requires nan where torch.func or plain autograd gives nan, and the same numbers elsewhere."""
    if any(name in str(case.program) for name in (*WITHOUT_SQUARES, *DIFFERS_IN_VECTORS)):
        return
    layouts = f"{case.x.layout} {case.constant.layout}"
    if "expanded" in layouts and "median(" in str(case.program):
        return  # torch's kernel reads other memory, of a captured tensor in ours too
    orders = sum(level.kind != "vmap" for level in case.levels)
    if orders > 1 and re.search(POWER_OF_TENSORS, str(case.program)):
        return
    result = ours(case)
    theirs = attempt(by_torch(case, "func"), func=torch.func)
    if isinstance(theirs, Exception) and case.x.layout == "negative":
        # torch's forward AD fails on views with the negative bit. The numbers are the same without.
        twin = dataclasses.replace(case, x=dataclasses.replace(case.x, layout="contiguous"))
        theirs = attempt(by_torch(twin, "func"), func=torch.func)
    plain = attempt(by_torch(case, "plain"), plain=Plain)
    if isinstance(result, Exception):
        if isinstance(theirs, Exception):
            return
        raise result
    # vmap implements max by amax, whose gradient at nan is nan, where max distributes it.
    by_amax = plain
    if ".max()" in str(case.program) and any(level.kind == "vmap" for level in case.levels):
        program = tuple(line.replace(".max()", ".amax()") for line in case.program)
        twin = dataclasses.replace(case, program=program)
        by_amax = attempt(by_torch(twin, "plain"), plain=Plain)
    others = [other.detach() for other in (theirs, plain, by_amax) if isinstance(other, Tensor)]
    limits = [*LIMITS, *MASKED, *(LIMITS_OF_SECOND if orders > 1 else ())]
    if any(name in str(case.program) for name in limits):
        others = [torch.where(other.isnan(), result, other) for other in others]
    if orders > 1 and any(name in str(case.program) for name in PIECEWISE_LINEAR):
        others = [torch.where(other.isnan() & (result == 0), result, other) for other in others]
    is_nan_here = ["functional.elu(", *([" ** ", "norm("] if orders > 1 else [])]
    if any(name in str(case.program) for name in is_nan_here):
        # The second derivative of elu at nan; in torch it is zero in the tail after whole vectors.
        # That of x ** x at zero, which is infinite, and of a norm; in torch it is zero.
        others = [torch.where(result.isnan(), result, other) for other in others]
    if ".sinc()" in str(case.program):
        # torch gives zero at zero, whatever multiplies it; the second derivative is not zero.
        may_differ = result.isnan() | (orders > 1)
        others = [torch.where((other == 0) & may_differ, result, other) for other in others]
    if orders > 1:  # what is larger is a rounding error, divided by the square of 1e-310
        others = [torch.where(is_huge(result) | is_huge(other), result, other) for other in others]
    # torch's own may overflow where the result does not: hypot squares its arguments.
    others = [
        torch.where(other.isinf() & (other * result > 1e100), result, other) for other in others
    ]
    # Each element by itself: torch's conventions of the two differ by operator.
    same = [result.isclose(other, rtol=1e-6, atol=1e-12, equal_nan=True) for other in others]
    if not same or not torch.stack(same).any(0).all():
        raise AssertionError(f"torchlayers: {result}\ntorch.func: {theirs}\nplain: {plain}")
