"""Every feature inside every nest is right, or refused in words that are listed."""

import ast
import inspect
import re

import pytest

import torchlayers as tl
from tests.distributed.processes import Ranks
from tests.pairs import nests, page
from tests.pairs.cells import RIGHT, outcome
from tests.pairs.nests import NESTS
from tests.pairs.refused import REFUSED, of
from tests.pairs.rows import FEATURES, own, torchs

# Public names that are neither a feature of a function nor a transform of one.
NEITHER = {
    "modules of names": "autograd_function checkpoint_policies compiled debug distributed errors "
    "extend graph implicit memory random testing tree",
    "for a layer in Python": "OperatorCall",
    "classes of what is returned": "Coloring Ensemble LayerTensor ShapeDtypeStruct SparsityPattern",
    "for looking at tensors, functions and the stack": "costs coverage current_stack debug_unwrap "
    "inspect is_alive is_batched level make_graph names sparsity trace unwrap",
    "for modules, trees and files": "combine export load partition rearrange "
    "replace_all_batch_norm_modules_ stack_module_state",
    "process-wide": "install uninstall",
    "a part of another": "checkpoint_name coloring recomputation",
}


@pytest.fixture(scope="module")
def ranks():
    """Processes, which start with the first pair that needs them."""
    processes = Ranks(2)
    yield processes
    processes.close()


def tried(ranks: Ranks, feature: str, nest: str) -> str:
    if not FEATURES[feature].over_ranks:
        return outcome(feature, nest)
    answers = ranks.answers("tests.pairs.cells", "check_on_this_rank", feature, nest)
    if any(
        answer != "" for answer in answers
    ):  # the ranks may wait for each other in different places
        ranks.close()
    return next((answer or "no answer in time" for answer in answers if answer != ""), RIGHT)


@pytest.mark.sweep(one_in=14)
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_pair_is_right_or_refused_in_these_words(ranks, feature, nest):
    got, refused = tried(ranks, feature, nest), of(feature, nest)
    if refused is None:
        assert got == RIGHT
    else:
        assert re.search(refused.words, got)


@pytest.mark.parametrize(
    "refused", REFUSED, ids=lambda refused: f"{refused.features} in {refused.nests}"
)
def test_a_refusal_is_of_pairs(refused):
    assert any(re.fullmatch(refused.features, feature) for feature in FEATURES)
    assert any(re.fullmatch(refused.nests, nest) for nest in NESTS)


def test_every_public_name_has_a_row_or_a_column():
    used = {
        node.attr
        for module in (own, torchs, nests)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "tl"
    }
    others = {name for names in NEITHER.values() for name in names.split()}
    assert others - {*tl.__all__} == set()
    assert {*tl.__all__} - others - used == set()


def test_the_page_is_that_of_the_table():
    assert page.PAGE.read_text() == page.text(), "run python -m tests.pairs.page"
