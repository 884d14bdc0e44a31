"""How our transforms behave while torch.compile or torch.export traces them.

NOTE [Under torch.compile]
Dynamo can't see into our C++ layers, and compiled code has no use for them, since it no longer
dispatches operators one by one. Dynamo does understand torch.func's transforms. So while it traces,
each of our transforms calls its namesake there (torch_func.py), which has the same results.

NOTE [Graph breaks inside transforms]
At a call inside a transform that Dynamo can't trace, it runs the whole transform, and starts anew
at the functions that this calls. There it fails on the wrappers of torch.func's levels (torch
2.13). So our transform is run instead, and Dynamo is kept off the functions that it calls.

NOTE [Under torch.export]
Non-strict torch.export does not use Dynamo: it runs the program, and captures each operator at the
PreDispatch key, above all layers. There the tensors are our wrappers, which it does not know. So
that key is excluded while our layers are active, and the operators that reach the bottom of the
stack are dispatched to it from there: the captured graph is the transformed program.
"""

import contextlib
import functools
import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core.annotations import P, R
from torchlayers.core.errors import TorchVersionError, TransformError
from torchlayers.core.operators import aten
from torchlayers.core.private_names import lookup, patch, private
from torchlayers.core.shared_change import SharedChange
from torchlayers.core.torch_private import (
    TorchDispatchMode,
    dispatch_keys,
    functorch,
    is_wrapped,
)
from torchlayers.core.torch_versions import is_per_thread

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

eval_frame = private("torch._C._dynamo.eval_frame")
_CLONE_INPUT = "torch._dynamo.variables.builder._clone_input"
_ZEROS = aten._new_zeros_with_same_feature_meta.default
_PRE_DISPATCH = torch.DispatchKeySet(torch.DispatchKey.PreDispatch)

is_tracing = torch.compiler.is_dynamo_compiling
# Whether operators are captured at the PreDispatch key, as non-strict torch.export does.
is_exporting = _C.is_exporting


def call_exported(call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Runs a call with its operators captured below the layers; only while is_exporting()."""
    with _capture_below(contextlib.nullcontext()):
        return call(*args, **kwargs)


def exported_below(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: torch.export captures operators below the layers that the function enters."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_exporting():
            return call_exported(function, *args, **kwargs)
        return function(*args, **kwargs)

    return call


def captured_below(entry: Any) -> Any:
    """The context manager that enters a layer; torch.export captures operators below the layer."""
    return _capture_below(entry) if is_exporting() else entry


@contextlib.contextmanager
def _capture_below(entry: Any) -> Iterator[Any]:
    with dispatch_keys(without=_PRE_DISPATCH), _ExportMode(), entry as level:  # type: ignore[no-untyped-call]
        yield level


class _ExportMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatches each operator again at the PreDispatch key, where it is captured."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _ZEROS:
            return _zeros_in_core_operators(*args, **kwargs)
        with dispatch_keys(including=_PRE_DISPATCH):
            return func(*args, **kwargs)


def _zeros_in_core_operators(like: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Any:
    """The zeros that forward mode makes, by an operator that consumers of exports know."""
    with dispatch_keys(including=_PRE_DISPATCH):
        return like.new_zeros(like.shape[:self_num_batch_dims] + other.shape)


def skipped_while_tracing(function: Callable[P, R], reason: str = "") -> Callable[P, R]:
    """Decorator: where Dynamo traces, it skips the function and everything it calls; elsewhere the
    function costs nothing more, and Dynamo is not imported, which takes longer than all other
    imports. With ``fullgraph=True``, Dynamo's error has the reason."""
    skipped = lookup("torch._compile._disable_dynamo", torch.compiler.disable)(function)
    if reason:
        # As torch.compiler.disable(reason=...) marks its functions; without a meaning elsewhere.
        vars(skipped).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return skipped(*args, **kwargs) if is_tracing() else function(*args, **kwargs)

    return call


def is_inside(*kinds: str) -> bool:
    """Whether a level of one of these kinds ("Grad", "Jvp", …) is active. Dynamo, too, enters the
    levels of the transforms that it traces."""
    stack = functorch.get_interpreter_stack() or ()
    return any(entry.key().name in kinds for entry in stack)


# Dynamo calls it while it traces.
is_inside._dynamo_marked_constant = True  # type: ignore[attr-defined]


def uncompiled(function: Function) -> Function:
    """Decorator: Dynamo does not start compiling at calls of the function, nor inside it.

    Calls in code that it traces are unaffected. Dynamo treats torch's own functions, which it
    knows by their files, in the same way.
    """
    try:
        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except TorchVersionError:  # Dynamo then compiles the function
        pass
    return function


@uncompiled
def run_unless_traced(
    torch_transform: Callable[..., R],
    build_ours: Callable[[], Callable[..., R]],
    *args: Any,
    **kwargs: Any,
) -> R:
    """Calls torch.func's transform where Dynamo traces, else ours, which is built for it: NOTE
    [Graph breaks inside transforms]."""
    return (torch_transform if is_tracing() else build_ours())(*args, **kwargs)


def refuse_strict_export(api: str) -> None:
    """Raises in strict torch.export, which turns gradients into constants (torch 2.13)."""
    # While Dynamo traces, torch.compiler.is_exporting() is always true in 2.11.
    if getattr(torch.compiler, "_is_exporting_flag", False):  # not lookup: Dynamo traces this
        raise TransformError(
            f"torchlayers: {api} does not work in torch.export with strict=True, which loses the "
            "gradients of torch.func. Leave strict=False, its default."
        )


def copy_parameters_outside() -> None:
    """Lets Dynamo copy, in strict export, the parameters that a transformed function reads.

    Dynamo copies a parameter's value when it first reads it, inside the levels that it is tracing
    (torch 2.13, also for torch.func): so the copy would be a wrapper of a level, without memory.
    """
    copy = lookup(_CLONE_INPUT, None)
    if copy is None or hasattr(copy, "__wrapped__"):
        return
    alone = lookup("torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack")

    @functools.wraps(copy)
    def outside(value: Any, fake_mode: Any) -> Any:
        if not isinstance(value, torch.Tensor) or is_wrapped(value):
            return copy(value, fake_mode)
        with alone():
            return copy(value, fake_mode)

    patch(_CLONE_INPUT, lambda _: outside)


# Dynamo calls it while it traces, as in NOTE [Forward mode in Dynamo].
copy_parameters_outside._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse(api: str, **options: Any) -> None:
    """Raises if an option is set that the torch.func transform of the same name lacks."""
    for name, value in options.items():
        if value:
            raise TransformError(
                f"torchlayers: {api}: {name}={value!r} does not work in torch.compile and "
                "torch.export. Leave it out there, or compile the function inside the transform "
                "instead."
            )


def import_uninterrupted(*modules: str) -> None:
    """Imports torch modules on a thread of their own, so that Ctrl-C can't interrupt the import.

    After an interrupted import Python keeps the modules imported so far, such as half of sympy, and
    operators that can't be registered a second time; compilation would fail from then on.
    """
    if all(module in sys.modules for module in modules):
        return

    def work() -> None:
        # An error here is raised again by the caller's own import.
        with contextlib.suppress(BaseException), _without_cache():
            for module in modules:
                importlib.import_module(module)

    thread = threading.Thread(target=work, name="torchlayers imports")
    thread.start()
    thread.join()


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    """Lets Dynamo be imported even if Inductor's cache directory, made on import, can't be created.

    The error is then raised when the directory is used.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(name)
    try:
        os.makedirs(before or tempfile.gettempdir(), exist_ok=True)
    except OSError:
        os.environ[name] = os.sep  # exists, and the import writes nothing to it
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
        elif os.environ.get(name) == os.sep:
            del os.environ[name]


@contextlib.contextmanager
def run_eagerly() -> Iterator[None]:
    """Context manager: this thread runs functions compiled by torch.compile eagerly, traced or not.

    A compiled function is already functionalized and captured as a whole, and an enclosing
    functionalize or capture can't do that a second time.
    """
    # torch.cond's first call imports Dynamo, which must not be traced either.
    config = lookup("torch._dynamo.config")
    if _stance.is_eager_here:  # another one is around this one
        yield
        return
    with _stance.eager_here(), patched(config, {"error_on_nested_fx_trace": False}):
        yield


def patched(config: Any, settings: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """torch's ``config.patch(settings)``, cached: each new patch object leaks in its thread."""
    try:
        patch = _patch_of(config, tuple((name, type(v), v) for name, v in settings.items()))
    except TypeError:  # an option without a hash
        return config.patch(dict(settings))  # type: ignore[no-any-return]
    return patch()


@functools.cache
def _patch_of(
    config: Any, settings: tuple[tuple[str, type, Any], ...]
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    changes = {name: value for name, _, value in settings}
    patch = config.patch(changes)
    return (lambda: patch) if is_per_thread(patch) else _patch_all_threads(config, changes).made


def _patch_all_threads(config: Any, changes: dict[str, Any]) -> SharedChange:
    def make() -> Callable[[], None]:
        patch = config.patch(changes)
        patch.__enter__()
        return functools.partial(patch.__exit__, None, None, None)

    return SharedChange(make)


class _Stance(threading.local):
    """Replaces Dynamo's stance, which all threads share, with one per thread."""

    _replaced: Any = None

    def __init__(self) -> None:
        self._is_eager = False

    @property
    def is_eager_here(self) -> bool:
        return self._is_eager

    @property
    def stance(self) -> str:
        return "force_eager" if self._is_eager else self._replaced.stance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replaced, name)

    @contextlib.contextmanager
    def eager_here(self) -> Iterator[None]:
        with _stance_per_thread.made():
            was_eager, self._is_eager = self._is_eager, True
            try:
                yield
            finally:
                self._is_eager = was_eager


def _replace_stance() -> Callable[[], None]:
    frames = lookup("torch._dynamo.eval_frame")
    if lookup("torch._dynamo.eval_frame._stance") is not _stance:
        _Stance._replaced = frames._stance
    frames._stance = _stance

    def put_back() -> None:
        if frames._stance is _stance:
            frames._stance = _Stance._replaced

    return put_back


_stance = _Stance()
_stance_per_thread = SharedChange(_replace_stance)
