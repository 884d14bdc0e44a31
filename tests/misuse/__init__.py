"""Misuse: what is refused, in which words, and that nothing is left behind.

A message of ours says what is wrong, where, and what to do. Each is written out here, and
has to be what a program meets, to the letter. What torch itself says, or a tensor's own
method, is known here by its beginning.
"""

import pytest

pytest.register_assert_rewrite("tests.misuse.table")
