"""torchlayers' own cotangent rules: all of them, some out of force, and those that are followed."""

import functools

from tests import rules
from torchlayers import _C

RULES = sorted(_C.vjp_rules())
switched_off = functools.partial(rules.switched_off, _C.switch_vjp_rule)
followed = functools.partial(rules.followed, "grad")
