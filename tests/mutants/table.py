"""All mutants, in the order in which they are tried."""

from tests.mutants.faults import compiler, core, csrc, csrc_rules, programs, rules, transforms

MUTANTS = (
    *core.MUTANTS,
    *transforms.MUTANTS,
    *rules.MUTANTS,
    *programs.MUTANTS,
    *compiler.MUTANTS,
    *csrc.MUTANTS,
    *csrc_rules.MUTANTS,
)
