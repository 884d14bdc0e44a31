"""Where torchlayers and torch.func don't do the same on op_db, each with its reason.

An entry is (operator, transform, dtype): reason. The sweep fails when something differs
that is not listed, and when something listed no longer differs.
"""

_REGISTERED_AUTOGRAD = (
    "only torchlayers works: a custom operator whose register_autograd torch.func refuses"
)
_LOST_TANGENT = (
    "only torch.func works, and gives a tangent of zeros: a custom operator without forward "
    "derivative, which torchlayers refuses"
)
_REVERSE = ("grad", "vjp", "grad(vmap)", "vjp(vjp)")
_FORWARD = ("jvp", "jvp(jvp)", "vmap(jvp)")

DIFFERENCES: dict[tuple[str, str, str], str] = {
    (f"nn.functional.linear_cross_entropy.{variant}", transform, dtype): reason
    for variant, reason, transforms in (
        ("chunked", _REGISTERED_AUTOGRAD, (*_REVERSE, "vmap(grad)", "vmap(vjp)")),
        ("chunked_none", _REGISTERED_AUTOGRAD, _REVERSE),
        ("chunked", _LOST_TANGENT, _FORWARD),
        ("chunked_none", _LOST_TANGENT, _FORWARD),
    )
    for transform in transforms
    for dtype in ("float32", "float64", "bfloat16")
}
