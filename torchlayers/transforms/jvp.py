"""Forward mode: jvp.

A jvp layer is entered; each primal and its tangent become a dual number at the
layer's level; the function runs on the dual numbers, and its results are split again
into values and tangents. The implementation is in csrc/python/calls/call_jvp.cpp.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchlayers import _C
from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import Aux, Ins, R
from torchlayers.core.errors import (
    BatchedOperatorError,
    DtypeError,
    NotTensorError,
    OutputError,
    StructureError,
    instead,
)
from torchlayers.taps import with_tangents
from torchlayers.transforms import jvp_by_double_vjp


@overload
def jvp(
    func: Callable[[Unpack[Ins]], R],
    primals: tuple[Unpack[Ins]],
    tangents: tuple[Unpack[Ins]],
    *,
    strict: bool = False,
    has_aux: Literal[False] = False,
    taps: Mapping[str, Any] | None = None,
) -> tuple[R, R]: ...
@overload
def jvp(
    func: Callable[[Unpack[Ins]], tuple[R, Aux]],
    primals: tuple[Unpack[Ins]],
    tangents: tuple[Unpack[Ins]],
    *,
    strict: bool = False,
    has_aux: Literal[True],
    taps: Mapping[str, Any] | None = None,
) -> tuple[R, R, Aux]: ...
@overload
def jvp(
    func: Callable[[Unpack[Ins]], Any],
    primals: tuple[Unpack[Ins]],
    tangents: tuple[Unpack[Ins]],
    *,
    strict: bool = False,
    has_aux: bool,
    taps: Mapping[str, Any] | None = None,
) -> Any: ...
def jvp(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    strict: bool = False,
    has_aux: bool = False,
    taps: Mapping[str, Any] | None = None,
) -> Any:
    """Jacobian-vector product: func's value, and its derivative along the tangents.

    Args:
        func: takes the primals; returns a tensor or a pytree of tensors, or
            ``(output, aux)`` with has_aux.
        primals: a tuple of tensors or pytrees of tensors: func's positional arguments.
        tangents: have the primals' structure, shapes and dtypes.
        strict: raise an error for an output that does not depend on the primals, instead of
            giving it a zero tangent.
        has_aux: func returns a second value, which is passed through.
        taps: maps names of :func:`torchlayers.tap` and paths of modules to tangents, which are
            added to the tangents that the values there get from the primals.
    Returns:
        ``(output, output_tangents)``, both in the structure of func's output; with has_aux
        ``(output, output_tangents, aux)``.
    Raises:
        StructureError: primals are not a tuple, or tangents do not match them; or a primal is
            expanded, and its tangent is not.
        NotTensorError: a primal or a tangent holds something other than tensors.
        OutputError: func returned something other than tensors; or strict is set, and an output
            is independent of the primals.
        DtypeError: a primal or tangent is neither floating-point nor complex, or func can't
            compute with the two different dtypes.
        TapError: a name among taps has no value in func, or several; or a tangent does not match
            its value.
    Example:
        >>> jvp(torch.sin, (torch.tensor(0.0),), (torch.tensor(2.0),))
        (tensor(0.), tensor(2.))

    Source: torch.func.jvp; forward accumulation as in Griewank and Walther, "Evaluating
        Derivatives" (2008), chapter 3.
    """
    if taps is not None:
        func = with_tangents("jvp", func, taps)
    if tracing_state.is_tracing():
        tracing_state.copy_parameters_outside()
        torch_jvp, options = jvp_by_double_vjp.jvp, {"strict": strict, "has_aux": has_aux}
        return tracing_state.run_unless_traced(
            torch_jvp, lambda: jvp, func, primals, tangents, **options
        )
    spec = JvpSpec("jvp", func, None, has_aux, strict)
    output, output_tangents, aux = spec.push(primals, tangents)
    return (output, output_tangents, aux) if has_aux else (output, output_tangents)


class JvpSpec(NamedTuple):
    """A function and the arguments to differentiate it with respect to.

    The call is in C++, which reads the fields, and calls a method when an error has to be raised.
    """

    api: str
    func: Callable[..., Any]
    argnums: int | tuple[int, ...] | None  # None for all arguments
    has_aux: bool = False
    strict: bool = False

    def push(
        self, primals: tuple[Any, ...], tangents: Any, are_leaves: bool = False
    ) -> tuple[Any, Any, Any]:
        """Returns the output, its tangents and aux.

        tangents is a pytree with the structure of the tuple of chosen primals, or, with are_leaves,
        the list of its leaves. Leaves may be None; the user's pytree classes, which may drop or
        reject None, never see them.
        """
        if not isinstance(primals, tuple):
            raise StructureError(
                f"torchlayers: {self.api}: primals must be a tuple, so that func(*primals) can be "
                f"called; got {type(primals).__name__}. For one argument write (x,)."
            )
        try:
            return _C.call_jvp(self, primals, tangents, are_leaves)
        except RuntimeError as error:
            # raised by torch or by a layer, not a subclass that the user defined
            if type(error) in (RuntimeError, NotImplementedError, BatchedOperatorError):
                self._explain(error, primals, tangents)
            raise

    def refuse_tangents(
        self, args: tuple[Any, ...], places: Sequence[int], tangents: Any, are_leaves: bool
    ) -> None:
        primals, spec = pytree.flatten(pytree.pick(args, places))
        leaves, tangent_spec = pytree.flatten(tangents)
        if not are_leaves and spec != tangent_spec:
            raise StructureError(
                f"torchlayers: {self.api}: tangents must have the structure of the primals: got "
                f"{pytree.describe(tangent_spec)} for {pytree.describe(spec)} (* is a leaf)."
            )
        if not primals:
            raise StructureError(f"torchlayers: {self.api}: primals must hold at least one tensor.")
        for i, primal in enumerate(primals):
            self._check_leaf("primal", args, places, i, primal)
        for i, tangent in enumerate(leaves):
            if are_leaves and tangent is None:
                continue
            self._check_leaf("tangent", args, places, i, tangent)
        for i, (primal, tangent) in enumerate(zip(primals, leaves, strict=True)):
            if tangent is not None and primal.shape != tangent.shape:
                raise StructureError(
                    f"torchlayers: {self.api}: {self._name('tangent', args, places, i)} has shape "
                    f"{tuple(tangent.shape)}, but its primal has shape {tuple(primal.shape)}: the "
                    "shapes must be equal."
                )

    def refuse_outputs(self, outputs: list[Any]) -> None:
        pytree.check_outputs(self.api, outputs)

    def refuse_independent(self, i: int) -> NoReturn:
        raise OutputError(
            f"torchlayers: {self.api}: output {i} is independent of the primals, which is an error "
            "with strict=True. Without strict its tangent is zero."
        )

    def _check_leaf(
        self, kind: str, args: tuple[Any, ...], places: Sequence[int], i: int, leaf: Any
    ) -> None:
        is_primal = kind == "primal"
        if not isinstance(leaf, Tensor):
            advice = (
                f"Convert it to a tensor, or {instead(self.api)}."
                if is_primal
                else "Pass zeros of its primal's shape (torch.zeros_like)."
            )
            raise NotTensorError(
                f"torchlayers: {self.api}: {self._name(kind, args, places, i)} must be a tensor, "
                f"got {type(leaf).__name__}. {advice}"
            )
        if not (leaf.is_floating_point() or leaf.is_complex()):
            advice = (
                f"Convert it, or {instead(self.api)}."
                if is_primal
                else "Convert it to its primal's dtype."
            )
            raise DtypeError(
                f"torchlayers: {self.api}: {self._name(kind, args, places, i)} must be "
                f"floating-point or complex, got {leaf.dtype}. {advice}"
            )

    def _explain(self, error: RuntimeError, args: tuple[Any, ...], tangents: Any) -> None:
        """Raises a clearer error if torch failed because a tangent does not match its primal.

        Most operators accept a tangent of another dtype, and some accept one on another device, so
        neither is an error until an operator fails.
        """
        text = str(error)
        everything = tuple(range(len(args)))
        places = (
            everything
            if self.argnums is None
            else pytree.positions(self.api, self.argnums, len(args))
        )
        primals = pytree.leaves(pytree.pick(args, places))
        for i, (primal, tangent) in enumerate(zip(primals, pytree.leaves(tangents), strict=True)):
            name = self._name("tangent", args, places, i)
            is_sparse = primal.layout is not torch.strided
            if is_sparse and "Sparse" in text and not text.startswith("torchlayers: "):
                raise StructureError(
                    f"torchlayers: {self.api}: {self._name('primal', args, places, i)} has the "
                    f"layout {primal.layout}, but torch supports tangents of strided tensors only "
                    f"({text.partition(chr(10))[0]}). Pass its values, and construct the sparse "
                    "tensor from them inside the function (torch.sparse_coo_tensor)."
                ) from error
            if "written-to tensor" in text and 0 in primal.stride():
                raise StructureError(
                    f"torchlayers: {self.api}: {self._name('primal', args, places, i)} is "
                    "expanded: its elements share memory, and those of its tangent don't. Pass its "
                    "clone()."
                ) from error
            if tangent is None:
                continue
            if "device" in text and tangent.device != primal.device:
                raise StructureError(
                    f"torchlayers: {self.api}: {name} is on {tangent.device}, its primal on "
                    f"{primal.device}: they must be on the same device."
                ) from error
            if "type" in text and tangent.dtype != primal.dtype:
                raise DtypeError(
                    f"torchlayers: {self.api}: {name} is {tangent.dtype}, its primal "
                    f"{primal.dtype}, but the function needs both to have the same dtype."
                ) from error

    def _name(self, kind: str, args: tuple[Any, ...], places: Sequence[int], i: int) -> str:
        """Returns the leaf's name for error messages.

        jvp and hvp take primals and tangents; the other transforms take arguments.
        """
        is_given = self.api in ("jvp", "hvp")
        return pytree.leaf_name(kind if is_given else "argument", args, i, places)
