"""torchlayers' own cotangent rules: all of them, some out of force, and those that are followed."""

import functools

from tests import rules
from tests.torch_versions import in_this_torch
from torchlayers import _C

RULES = in_this_torch(_C.vjp_rules())
switched_off = functools.partial(rules.switched_off, _C.switch_vjp_rule)
followed = functools.partial(rules.followed, "grad")
