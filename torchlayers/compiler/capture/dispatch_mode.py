"""The dispatch mode that sees operators at the bottom of the stack, before make_fx traces them."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.compiler.capture.bytecode import is_user_code, may_catch
from torchlayers.compiler.capture.errors import (
    DATA_DEPENDENT,
    OPAQUE_MEMORY,
    explain_capture_error,
)
from torchlayers.compiler.capture.values.constant_values import fold_if_constant
from torchlayers.compiler.capture.values.data_independent import SkippedChecks
from torchlayers.compiler.capture.values.reads import TensorReads
from torchlayers.core import pytree
from torchlayers.core.errors import TransformError
from torchlayers.core.operator_schema import is_composite
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import FakeTensor, OpOverload, TorchDispatchMode
from torchlayers.fx.aten_replacements import REPLACEMENTS
from torchlayers.fx.recomputation import Recomputations

_LOCAL_SCALAR = aten._local_scalar_dense.default
# Since torch 2.15 there are fake tensors of this kind, but a layer takes them for strided ones.
_TO_MKLDNN = aten.to_mkldnn.default
_DATA_DEPENDENT = (aten.equal.default, _LOCAL_SCALAR)
_CHECK_ERRORS = aten._linalg_check_errors.default
_DEVICE = torch.ops.prim.device.default
# Recording code slows down torch's, by a third in all. From Python 3.12 on, turning it off and on
# takes longer than that, since the interpreter then prepares all functions for it again.
_CAN_PAUSE = sys.version_info < (3, 12)


class CaptureDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes inputs of the tensors that the function captured; substitutes some operators.

    ``ran`` records the code that the function runs, if anything does; ``refuse`` raises an error
    that TorchScript's interpreter would lose; ``reads`` reads values of tensors, if it may.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        func: Callable[..., Any],
        capture: Callable[[Tensor], FakeTensor],
        recomputations: Recomputations,
        checks: SkippedChecks,
        ran: _C.RanCode | None,
        refuse: Callable[[TransformError], NoReturn],
        reads: TensorReads | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reads = reads
        self._refuse = refuse
        self._recomputations = recomputations
        self._func = func
        self._capture = capture
        self._checks = checks
        self._ran = ran if _CAN_PAUSE else None
        self._any_nan: Tensor | None = None
        self._outermost = sys._getframe(1).f_code  # which calls the function

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # by far the most frequent call
            return args[0].fake_device
        kwargs = kwargs or {}
        if func is _LOCAL_SCALAR and args[0] is self._any_nan:
            return False  # detect_anomaly checks gradients of calls, not these
        if func is not aten.lift_fresh.default:  # from torch.tensor: nothing else refers to it
            args, kwargs = pytree.map_tensors(self._known, (args, kwargs))
        if func is _LOCAL_SCALAR and not isinstance(args[0], Tensor):
            return args[0]  # a TorchScript constant, which is a number here
        if func is _CHECK_ERRORS and self._reads is not None and self._may_be_caught():
            return self._reads.check_errors(func, args, kwargs)
        if func is _TO_MKLDNN:
            self._explain(NotImplementedError(OPAQUE_MEMORY))
        if func not in REPLACEMENTS and isinstance(func, OpOverload) and is_composite(func):
            # In inference mode nothing above has decomposed it, and make_fx, which does it without
            # this mode, finds none of the replacements: batch norm would write unseen.
            with self:
                return func.decompose(*args, **kwargs)
        try:
            result = self._call(REPLACEMENTS.get(func, func), args, kwargs)
        except DATA_DEPENDENT as error:
            result = fold_if_constant(func, args, kwargs)
            if result is not NotImplemented:
                return result
            if self._checks.are_left_out and func in _DATA_DEPENDENT:
                return False
            if self._reads is not None:
                result = self._reads.read(func, args, kwargs)
                if result is not NotImplemented:
                    return result
            self._explain(error)
            raise
        if func is aten._is_any_true.default and torch.is_anomaly_check_nan_enabled():
            self._any_nan = result
        return result

    def _explain(self, error: Exception) -> None:
        try:
            explain_capture_error(error, self._func)
        except TransformError as explained:
            self._refuse(explained)

    def _may_be_caught(self) -> bool:
        """Whether the function may catch an error of the operator that runs."""
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_code is not self._outermost:
            if is_user_code(frame.f_code) and may_catch(frame.f_code):
                return True
            frame = frame.f_back
        return False

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls the operator; code of torch's that this runs is left out of ``ran``."""
        ran = self._ran
        if ran is None or getattr(func, "namespace", "") != "aten":
            return self._recomputations.call(func, args, kwargs)
        self._ran = None  # in operators that this one calls, it is off already
        ran.stop()
        try:
            return self._recomputations.call(func, args, kwargs)
        finally:
            ran.start()
            self._ran = ran

    def _known(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self._capture(tensor)
