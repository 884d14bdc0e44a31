"""torch.compile and torch.export: what our transforms do while these trace them.

NOTE [Under torch.compile]
Dynamo can't see into our C++ layers, and what it compiles has no use for them: no operator is
dispatched one by one any more. It does understand torch.func's transforms. So while it traces,
each of ours calls its namesake there (torch_func.py), with which it agrees.

NOTE [Under torch.export]
torch.export, where it is not strict, does without Dynamo: it runs the program, and writes down
each operator where it is called, above all layers. There the tensors are our wrappers, of which
it knows nothing. So that place is passed by while our layers are active, and the operators that
reach the bottom of the stack are shown to it from there: what it writes down is what the
transforms have come to.
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
from torch._functorch import pyfunctorch
from torch.utils._python_dispatch import TorchDispatchMode

from torchlayers import _C
from torchlayers.core.errors import TransformError

Result = TypeVar("Result")

_torch: Any = torch  # what it keeps for its own use has no types
_functorch: Any = _torch._C._functorch
_PRE_DISPATCH = _torch._C.DispatchKeySet(_torch._C.DispatchKey.PreDispatch)

is_tracing = torch.compiler.is_dynamo_compiling
# Whether operators are written down where they are called, as torch.export does it.
is_exporting = _C.is_exporting


def exported(call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """The call's result, its operators written down below the layers: where is_exporting()."""
    with _torch._C._ExcludeDispatchKeyGuard(_PRE_DISPATCH), _ShownAtTheBottom():  # type: ignore[no-untyped-call]
        return call(*args, **kwargs)


class _ShownAtTheBottom(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls each operator again where it is written down."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        included = _torch._C._dispatch_tls_local_include_set()
        excluded = _torch._C._dispatch_tls_local_exclude_set()
        with _torch._C._ForceDispatchKeyGuard(included | _PRE_DISPATCH, excluded - _PRE_DISPATCH):
            return func(*args, **(kwargs or {}))


def untraced(function: Callable[..., Result]) -> Callable[..., Result]:
    """A decorator: Dynamo leaves the function alone, and what that calls.

    torch.compiler.disable imports Dynamo at once, which takes longer than all else.
    """
    called = _torch._compile._disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        import_whole("torch._dynamo")
        return called(*args, **kwargs)  # type: ignore[no-any-return]

    return call


def uncompiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """A decorator: Dynamo compiles no call of the function that it does not trace, nor inside it.

    That is as with torch's own functions, which Dynamo knows by their files.
    """
    frames: Any = _torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    strategy = frames._FrameExecStrategy(skip, skip)
    frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def refuse_strict_export(api: str) -> None:
    """Raises where torch.export is strict: there gradients come out as constants (torch 2.13)."""
    # Of what Dynamo traces, is_exporting() is always true in 2.11.
    if _torch.compiler._is_exporting_flag:
        raise TransformError(
            f"torchlayers: {api} does not work in torch.export with strict=True, which loses the "
            "gradients of torch.func. Leave strict=False, its default."
        )


def copy_parameters_outside() -> None:
    """Lets Dynamo, where export is strict, copy the parameters that a transformed function reads.

    It copies a parameter's value where it first meets it, with the levels entered that it traces
    (torch 2.13, also for torch.func): the copy is a tensor of a level, and has no memory.
    """
    from torch._dynamo.variables import builder

    copy: Any = builder._clone_input
    if hasattr(copy, "__wrapped__"):
        return

    @functools.wraps(copy)
    def outside(value: Any, fake_mode: Any) -> Any:
        if not isinstance(value, torch.Tensor) or _functorch.is_functorch_wrapped_tensor(value):
            return copy(value, fake_mode)
        with pyfunctorch.temporarily_clear_interpreter_stack():
            return copy(value, fake_mode)

    builder._clone_input = outside


# Dynamo calls it while it traces, as in NOTE [Forward mode in Dynamo].
copy_parameters_outside._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse(api: str, **options: Any) -> None:
    """Raises if an option was given that torch.func's namesake lacks."""
    for name, value in options.items():
        if value:
            raise TransformError(
                f"torchlayers: {api}: {name}={value!r} does not work in torch.compile and "
                "torch.export. Leave it out there, or compile the function inside the transform "
                "instead."
            )


def import_whole(*modules: str) -> None:
    """Imports modules of torch's that Ctrl-C must not interrupt, on a thread that it never reaches.

    Of an import that ends in the middle Python keeps what was imported by then: half of sympy, and
    operators that can't be registered a second time. Nothing is compiled after that.
    """
    if all(module in sys.modules for module in modules):
        return

    def work() -> None:
        # What it ends with the import after this one raises again.
        with contextlib.suppress(BaseException), _without_cache():
            for module in modules:
                importlib.import_module(module)

    thread = threading.Thread(target=work, name="torchlayers imports")
    thread.start()
    thread.join()


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    """Importing Dynamo makes inductor's cache directory: if that can't be made, it is done without.

    Who uses the directory is told then.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(name)
    try:
        os.makedirs(before or tempfile.gettempdir(), exist_ok=True)
    except OSError:
        os.environ[name] = os.sep  # which is there, and nothing is written to it
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
        elif os.environ.get(name) == os.sep:
            del os.environ[name]


@contextlib.contextmanager
def run_eagerly() -> Iterator[None]:
    """Inside, this thread runs functions of torch.compile as they were written, recorded or not.

    A compiled function has its mutations removed and is recorded as a whole already; neither
    can be done to it a second time, from outside.
    """
    import torch._dynamo  # a part of torch.cond's first call, which must not be compiled either

    with _stance.eager_here(), patched(torch._dynamo.config, {"error_on_nested_fx_trace": False}):
        yield


def patched(config: Any, settings: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """torch's ``config.patch(settings)``, which leaves something in the thread for each new one."""
    try:
        patch: Any = _patch_of(config, tuple((name, type(v), v) for name, v in settings.items()))
    except TypeError:  # an option without a hash
        patch = config.patch(dict(settings))
    return patch  # type: ignore[no-any-return]


@functools.cache
def _patch_of(config: Any, settings: tuple[tuple[str, type, Any], ...]) -> Any:
    return config.patch({name: value for name, _, value in settings})


class _Stance(threading.local):
    """torch's stance, which is one for all threads, made one for each.

    The last to leave puts back the one that the first found.
    """

    _lock = threading.Lock()
    _inside = 0
    _found: Any = None

    def __init__(self) -> None:
        self._is_eager = False

    @property
    def stance(self) -> str:
        return "force_eager" if self._is_eager else self._found.stance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    @contextlib.contextmanager
    def eager_here(self) -> Iterator[None]:
        frames: Any = importlib.import_module("torch._dynamo.eval_frame")
        with self._lock:
            if _Stance._inside == 0:
                if frames._stance is not self:
                    _Stance._found = frames._stance
                frames._stance = self
            _Stance._inside += 1
        was_eager, self._is_eager = self._is_eager, True
        try:
            yield
        finally:
            self._is_eager = was_eager
            with self._lock:
                _Stance._inside -= 1
                if _Stance._inside == 0 and frames._stance is self:
                    frames._stance = self._found


_stance = _Stance()


class _OnThisThread:
    """True to one thread, until it is over."""

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()

    def __bool__(self) -> bool:
        return threading.get_ident() == self.thread


def traced_here(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function to hand to make_fx, which tells all threads that they are traced.

    On them what torch.compile has compiled would end with an error.
    """

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Result:
        tracing: Any = importlib.import_module("torch.fx._symbolic_trace")
        here = _OnThisThread()
        before, tracing._is_fx_tracing_flag = tracing._is_fx_tracing_flag, here
        try:
            return function(*args, **kwargs)
        finally:
            here.thread = None
            tracing._is_fx_tracing_flag = before

    return call
