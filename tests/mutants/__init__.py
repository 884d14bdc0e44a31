"""One hundred faults of the product, each of which the tests have to see: make mutants.

A mutant is one change of one file (python/ and csrc/ list them by room). For each, the program puts
the change into a copy of the project, runs the tests that concern it and prints which one failed. A
mutant that no test sees is a gap in the tests: the remedy is a test in the file of the module that
it changes.

    python -m tests.mutants                     # all
    python -m tests.mutants grad_of_zero jet    # some: names of mutants, and rooms or files
    python -m tests.mutants --list              # the table
    python -m tests.mutants --full              # with the long sweeps of the same tests
"""
