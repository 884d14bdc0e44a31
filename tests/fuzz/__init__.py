"""Random programs under random stacks of transforms: a Hypothesis strategy, and the checks.

A Case is Python source: a function for each level of the stack, each of which transforms the next,
and the program as the last one. That text is what runs, and what a failing test prints.
"""

from tests.fuzz.case import Case as Case
from tests.fuzz.case import Level as Level
from tests.fuzz.strategy import cases as cases
from tests.fuzz.values import Value as Value
