"""Checks of derivatives and of a Layer's rules, for tests: torchlayers.testing re-exports them."""

from torchlayers.transforms.testing.gradient_check import check_grads as check_grads
from torchlayers.transforms.testing.rule_check import check_rule as check_rule
from torchlayers.transforms.testing.rule_check import check_rules as check_rules
from torchlayers.transforms.testing.rule_report import RuleReport as RuleReport

__all__ = [
    "RuleReport",
    "check_grads",
    "check_rule",
    "check_rules",
]
