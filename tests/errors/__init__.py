"""Misuse: each is rejected with the expected message and leaves no state behind.

A message of ours says what is wrong, where, and what to do. Each is written out here in full and
has to match exactly. Messages of torch itself, or of a tensor's method, are matched by their
beginning.
"""

import pytest

pytest.register_assert_rewrite("tests.errors.table")
