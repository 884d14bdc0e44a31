"""User-defined rules for operators, and statements from which rules follow."""

from torchlayers.core.operator_rules.custom_rules import jvp_rule, vjp_rule
from torchlayers.transforms.layers.statements import statement

__all__ = ["jvp_rule", "statement", "vjp_rule"]
