"""The text of a symbolic number that user code asks for is that of a number, and so guarded."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from torchlayers.core.shared_change import SharedChange, replace_attributes

_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_OTHERS = ("torch", "torchlayers", "logging", "sympy")  # these may show symbols


def _guarded(symbol: Any, number: type) -> Callable[[Any], str]:
    show: Callable[[Any], str] = symbol.__repr__

    def text(value: Any) -> str:
        module = str(sys._getframe(1).f_globals.get("__name__", ""))
        if module.partition(".")[0] in _OTHERS or proxy_tensor.get_proxy_mode() is None:
            return show(value)
        return repr(number(value))

    return text


def _guard_text() -> Callable[[], None]:
    return replace_attributes(
        [(symbol, "__repr__", _guarded(symbol, number)) for symbol, number in _NUMBERS.items()]
    )


# Inside, f"{n}" specializes n: otherwise it would be the name of a symbol.
text_guarded = SharedChange(_guard_text)
