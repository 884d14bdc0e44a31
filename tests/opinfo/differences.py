"""Where torchlayers and torch.func don't do the same on op_db, each with its reason.

An entry is (operator, transform, dtype): reason. The sweep fails when something differs
that is not listed, and when something listed no longer differs.
"""

_REGISTERED_AUTOGRAD = (
    "only torchlayers works: a custom operator whose register_autograd torch.func refuses"
)
_CHUNKED = ("grad", "vjp", "grad(vmap)", "jvp(grad)", "vjp(vjp)")

DIFFERENCES: dict[tuple[str, str, str], str] = {
    (f"nn.functional.linear_cross_entropy.{variant}", transform, dtype): _REGISTERED_AUTOGRAD
    for variant, transforms in {
        "chunked": (*_CHUNKED, "vmap(grad)", "vmap(vjp)"),
        "chunked_none": _CHUNKED,
    }.items()
    for transform in transforms
    for dtype in ("float32", "float64", "bfloat16")
}
