"""sparsity: the pattern of a function's Jacobian or Hessian."""

from collections.abc import Callable
from typing import Any, Literal

from torchlayers.core.errors import TransformError
from torchlayers.core.function_checks import require_function
from torchlayers.transforms.sparse.detection import detect_hessian, detect_jacobian
from torchlayers.transforms.sparse.pattern import SparsityPattern

_DETECTORS = {"jacobian": detect_jacobian, "hessian": detect_hessian}


def sparsity(
    func: Callable[..., Any],
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    of: Literal["jacobian", "hessian"] = "jacobian",
    local: bool = False,
    has_aux: bool = False,
) -> SparsityPattern:
    """The sparsity pattern of func's Jacobian or Hessian.

    Runs func once, with a set of input positions on each element of each tensor. An entry that is
    not in the pattern is zero; one that is in it can be nonzero. The pattern has no false entries
    by most operators (docs/sparse.md lists the others); but entries that cancel (``x - x``) are in
    it.

    Args:
        func: takes tensors and pytrees of tensors; returns a real tensor or a pytree of those, or
            ``(output, aux)`` with has_aux. For a Hessian, a scalar.
        args: func's positional arguments. The pattern is valid for all values of those chosen by
            argnums, with their shapes; all others, and what func captures, count as constants:
            it relies on their zeros and indices.
        argnums: which arguments are the inputs (negative ints count from the end).
        of: ``"jacobian"`` or ``"hessian"``.
        local: the pattern at the given values only: of ``where``, ``max``, ``relu``, ``sort`` and
            other functions by cases, the case at hand; of a product, none of a factor's entries
            where the other factor is zero.
        has_aux: func returns a second value, which is ignored.
    Returns:
        A :class:`SparsityPattern`: a row for each element of the flattened outputs, the leaves of
        the output one after the other, and a column for each of the flattened inputs. Its
        ``unknown`` names operators that were taken as dense.
    Raises:
        NotTensorError: an input is not a tensor.
        DtypeError: an input is not floating-point, or an output is complex.
        OutputError: func returned something other than tensors.
        NotScalarError: of a Hessian, func returned something other than a real scalar.
        ArgnumsError: argnums does not match the arguments.
        TransformError: `of` is neither of the two.
    Warns:
        UserWarning: func reads a value that depends on the inputs in Python (``item()``,
            ``if x > 0``), so that the pattern holds only for inputs that take the same path.
            Branches and loops of :func:`torchlayers.cond` and the like are covered in all cases.
    Example:
        >>> print(torchlayers.sparsity(lambda x: x[1:] - x[:-1], torch.ones(5)))
        SparsityPattern(shape=(4, 5), nnz=8)
        ●●⋅⋅⋅
        ⋅●●⋅⋅
        ⋅⋅●●⋅
        ⋅⋅⋅●●
        >>> torchlayers.sparsity(lambda x: x.sin().sum(), torch.ones(5), of="hessian")
        SparsityPattern(shape=(5, 5), nnz=5)

    Source: Hill and Dalle, "Sparser, Better, Faster, Stronger: Sparsity Detection for Efficient
        Automatic Differentiation" (2025); Dixon, Maany and Mohseninia, "Automatic differentiation
        of large sparse systems" (1990).
    """
    if of not in _DETECTORS:
        raise TransformError(
            f"torchlayers: sparsity: of must be 'jacobian' or 'hessian', got {of!r}."
        )
    require_function(func)
    return _DETECTORS[of](func, args, argnums, local=local, has_aux=has_aux)
