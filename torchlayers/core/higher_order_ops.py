"""Higher-order operators (cond, flex_attention, ...) on our layers.

They dispatch in Python, by the highest active key without a fallthrough. While our layers
are active that would be our front key. Made to fall through it, they reach torch.func's
keys, whose rules work on our layers too, because every layer is mirrored in torch.func's
stack. The operators of autograd.Function and of control flow have our own rules: see
autograd_function and control_flow/torch_operators.py.
"""

from torchlayers import _C
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import dispatch_key

_KEYS = [dispatch_key(name) for name in (_C.FRONT_KEY, _C.BACK_KEY)]


def _fall_through() -> None:
    # Without these, an operator that has no rule of ours raises torch's error inside a layer.
    later = lookup("torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", [])
    later.extend(_KEYS)
    for operator in lookup("torch._ops._higher_order_ops", {}).values():
        for key in _KEYS:
            if key not in operator.py_kernels:
                operator.fallthrough(key)


_fall_through()
