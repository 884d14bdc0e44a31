"""Replaces torch.func's transforms with ours, for programs that should run unchanged."""

import importlib
import sys
import threading
from collections.abc import Mapping
from types import MappingProxyType, ModuleType, TracebackType
from typing import Any, NamedTuple

from torchlayers.compiler.jacobian.hessian import hessian
from torchlayers.core.errors import warn
from torchlayers.modules.functional_call import functional_call
from torchlayers.transforms.functionalize import functionalize
from torchlayers.transforms.grad import grad
from torchlayers.transforms.grad_and_value import grad_and_value
from torchlayers.transforms.jacobian.forward import jacfwd
from torchlayers.transforms.jacobian.reverse import jacrev
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.linearize import linearize
from torchlayers.transforms.vjp import vjp
from torchlayers.transforms.vmap import vmap

_OURS: Mapping[str, Any] = MappingProxyType(
    {
        "functional_call": functional_call,
        "functionalize": functionalize,
        "grad": grad,
        "grad_and_value": grad_and_value,
        "hessian": hessian,
        "jacfwd": jacfwd,
        "jacrev": jacrev,
        "jvp": jvp,
        "linearize": linearize,
        "vjp": vjp,
        "vmap": vmap,
    }
)
# The modules that programs import them from. functorch is torch.func's older name.
_PLACES = {"torch": ("vmap",), "torch.func": tuple(_OURS), "functorch": tuple(_OURS)}


class _Replaced(NamedTuple):
    module: ModuleType
    name: str
    original: Any


_lock = threading.RLock()
_installations: set["Installation"] = set()
_replaced: list[_Replaced] = []


class Installation:
    """The context manager that install() returns; the installation ends with its ``with`` block."""

    def __enter__(self) -> "Installation":
        with _lock:
            _installations.add(self)
            _put_in()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _lock:
            _installations.discard(self)
            if not _installations:
                _take_out()


def install() -> Installation:
    """Replaces the transforms of torch.func, torch.vmap and functorch with ours, process-wide.

    Code that calls ``torch.func.grad`` or ``torch.vmap`` then runs on torchlayers, unchanged, on
    every thread. Code that imported a function from these modules before (``from torch.func import
    grad``) keeps torch's, so install first; if the calling module is such code, a warning says so.
    torch's own machinery keeps torch's functions:
    torch.compile, torch.export and torch.autograd.functional work as before.

    Returns:
        A context manager: ``with install():`` restores torch's functions at the end of the block,
        also after an exception. Ours stay in place while any installation on any thread lasts.
    Example:
        >>> import torch, torchlayers
        >>> with torchlayers.install():
        ...     torch.func.grad is torchlayers.grad
        True
        >>> torch.func.grad is torchlayers.grad
        False
    """
    installation = Installation().__enter__()
    _warn_of_names_bound_before(sys._getframe(1).f_globals)
    return installation


def uninstall() -> None:
    """Restores the functions of torch.func, torch.vmap and functorch; ends every installation.

    Functions that another package has replaced since are left. Without an installation it does
    nothing.

    Example:
        >>> _ = torchlayers.install()
        >>> torchlayers.uninstall()
        >>> torch.func.grad is torchlayers.grad
        False
    """
    with _lock:
        _installations.clear()
        _take_out()


def _warn_of_names_bound_before(module: dict[str, Any]) -> None:
    names = {id(replaced.original): replaced.name for replaced in _replaced}
    bound = sorted({names[id(value)] for value in [*module.values()] if id(value) in names})
    if bound:
        warn(
            f"torchlayers: install: {module.get('__name__', 'this module')} has imported "
            f"{', '.join(bound)} from torch.func before, and keeps torch's. Call install() above "
            "that import, or import from torchlayers instead."
        )


def _put_in() -> None:
    if _replaced:
        return
    for place, names in _PLACES.items():
        module = importlib.import_module(place)
        for name in names:
            if name in vars(module):  # functorch has no linearize
                _replaced.append(_Replaced(module, name, getattr(module, name)))
                setattr(module, name, _OURS[name])


def _take_out() -> None:
    while _replaced:
        module, name, original = _replaced.pop()
        if getattr(module, name, None) is _OURS[name]:
            setattr(module, name, original)
