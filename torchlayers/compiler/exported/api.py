"""torchlayers.export: a function of any layers as one graph of core ATen operators."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers.compiler.capture.errors import ALTERNATIVES, NO_VALUES, name_of
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.capture.signature import tensor_metadata
from torchlayers.compiler.exported.build import export_captured
from torchlayers.compiler.exported.compare import compare
from torchlayers.compiler.exported.dynamic_dims import dynamic_dims
from torchlayers.compiler.exported.exported_function import ExportedFunction
from torchlayers.compiler.exported.sparse_results import with_dense_results
from torchlayers.core import pytree
from torchlayers.core.errors import DataDependentError
from torchlayers.core.function_checks import check_function


def export(
    f: Callable[..., Any],
    /,
    *args: Any,
    dynamic: Any = None,
    check: bool = True,
    **kwargs: Any,
) -> ExportedFunction:
    """Exports a function, with whatever transforms are in it, to run outside Python.

    f runs once on tensors without values, as in :func:`compile`; what reaches the bottom of the
    stack is exported with torch.export as one graph of core ATen operators. Tensors that f
    captures, such as a module's parameters, are constants inside the program; to pass them at each
    call, make them arguments (:func:`functional_call`). A sparse Jacobian in the result becomes a
    dict of its values and its pattern.

    Args:
        f: any function, method or module.
        args, kwargs: its arguments: pytrees of tensors and constants.
        dynamic: the sizes that may differ at calls, as torch.export's dynamic_shapes: for each
            argument, by name or in order, a pytree like it with a dict ``{dimension: size}`` for
            each tensor, whose values are names or torch.export.Dim. The others are fixed.
        check: compare the program's results on these arguments with f's.
    Returns:
        An :class:`ExportedFunction`: ``save`` writes it to a file, ``to_onnx`` as an ONNX model,
        ``to_aot`` as native code for C++.
    Raises:
        DataDependentError: f needs a Python value that depends on tensor data.
        TransformError: f draws random numbers without a key, prints, or calls Python from the
            graph; a size that was to be dynamic is a number in f; the results differ.
        StructureError: dynamic does not match the arguments.
    Example:
        >>> def energy(x):
        ...     return (x**3).sum()
        >>> slopes_of_batch = torchlayers.vmap(torchlayers.grad(energy))
        >>> slopes = torchlayers.export(slopes_of_batch, torch.ones(4, 2), dynamic=({0: "n"},))
        >>> slopes(torch.full((2, 1), 2.0).expand(2, 2))
        tensor([[12., 12.],
                [12., 12.]])

    Source: torch.export.export; jax.export.
    """
    check_function("export", "f", f)
    func = with_dense_results(f)
    dims = dynamic_dims(func, args, kwargs, dynamic)
    symbolic = [{*of_tensor} for of_tensor in dims] if any(dims) else None
    try:
        captured_graph = record(func, args, kwargs, guarded=True, symbolic=symbolic, lines=True)
    except DataDependentError as error:
        raise DataDependentError(_of_export(str(error))) from error
    leaves, spec = pytree.flatten((args, kwargs))
    described = [tensor_metadata(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    examples = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor)]
    function = export_captured(name_of(f), captured_graph, described, spec, dims, examples)
    if check and not function.writes:
        compare("export", name_of(f), func(*args, **kwargs), function(*args, **kwargs))
    return function


def _of_export(text: str) -> str:
    """The text of a capture's error in the words of export."""
    text = text.replace(NO_VALUES, "but an exported function runs without Python.")
    text = text.replace(ALTERNATIVES, "Use torch.where or torchlayers.cond for a branch.")
    return text.replace("compile:", "export:", 1)
