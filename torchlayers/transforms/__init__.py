"""The transforms, one module each: grad, jvp, vmap, jacobian, hvp, linearize, functionalize and
per-sample norms.
"""
