"""The benchmark of the compiler's passes counts what each saves, and leaves each out in turn."""

import re

from benchmarks import compiled_passes
from benchmarks.compiled_passes import Needed
from benchmarks.workloads.catalogue import small
from benchmarks.workloads.passes import NEEDED_BY
from torchlayers.compiler import passes as compiler_passes
from torchlayers.compiler.passes.drop_copies import drop_copies


def test_savings_of_passes_are_counted():
    costs = [compiled_passes.passes(small()[-1])]
    (_, recorded), *_, (_, left) = costs[0]
    assert left.operators < recorded.operators
    table = compiled_passes.by_pass(costs, {"drop_copies": Needed("sin", 1.0, 2.0, 3.0)})
    assert re.search(r"\| `drop_copies` \| \d+ \| .* \| sin \| 1.00 \| 2.00 \| 3.00 \|", table)
    assert f"| {recorded.operators} | " in compiled_passes.by_workload(small()[-1:], costs)


def test_each_pass_has_a_program_that_needs_it():
    stages = (*compiler_passes.STAGES, *compiler_passes.FUSING)
    names = {simplification.__name__ for stage in stages for simplification in stage.passes}
    assert {*NEEDED_BY} == names | {"share_steps"}


def test_a_pass_is_left_out_of_both_compilations_stages():
    before = compiler_passes.STAGES, compiler_passes.FUSING, compiler_passes.share_steps
    with compiled_passes.without("drop_copies"):
        stages = (*compiler_passes.STAGES, *compiler_passes.FUSING)
        assert not any(drop_copies in stage.passes for stage in stages)
    with compiled_passes.without("share_steps"):
        assert compiler_passes.share_steps is not before[-1]
    assert before == (compiler_passes.STAGES, compiler_passes.FUSING, compiler_passes.share_steps)
