"""Higher-order operators (cond, flex_attention, ...) on our layers.

They dispatch in Python, by the highest active key without a fallthrough. While our layers
are active that would be our front key. Made to fall through it, they reach torch.func's
keys, whose rules work on our layers too, because every layer is mirrored in torch.func's
stack. The operators of autograd.Function and of control flow have our own rules: see
autograd_function and control_flow/torch_operators.py.
"""

import torch
from torch import _ops

from torchlayers import _C

_KEYS = [torch._C._dispatch_key_parse(name) for name in (_C.FRONT_KEY, _C.BACK_KEY)]


def _fall_through() -> None:
    _ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.extend(_KEYS)  # for later operators
    for operator in _ops._higher_order_ops.values():
        for key in _KEYS:
            if key not in operator.py_kernels:
                operator.fallthrough(key)  # type: ignore[no-untyped-call]


_fall_through()
