"""Jacobians: jacrev and jacfwd; hessian, which is built of them, is in compiler/jacobian.

A Jacobian is a vjp for every element of the output (jacrev) or a jvp for every element of
the input (jacfwd), all of them at once under vmap. The cotangents, or tangents, are the rows
of an identity matrix, split where one tensor ends and the next begins:

    outputs of 2 and 1 elements:   1 0 | 0     one chunk of rows is built at a time
                                   0 1 | 0
                                   0 0 | 1
"""
