"""One module per transform: grad, jvp, vmap, jacobian, hvp, linearize, functionalize, per-sample
norms.
"""
