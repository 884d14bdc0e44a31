"""How many rules of layers in Python are written by hand, beside what csrc/rules states.

``python -m tests.repository.test_rules_by_hand`` prints them. An operator that is added to torch
should need its statement in csrc/rules and nothing here: state its form there (csrc/rules/table.h)
rather than raise a limit.
"""

import pytest

from torchlayers.transforms.jet import rules as jet_rules  # noqa: F401
from torchlayers.transforms.jet.layer import Jet
from torchlayers.transforms.laplacian import rules as laplacian_rules  # noqa: F401
from torchlayers.transforms.laplacian.layer import ForwardLaplacian
from torchlayers.transforms.sparse.detection import rules as sparse_rules  # noqa: F401
from torchlayers.transforms.sparse.detection.layer import Sparsity

LAYERS = {"jet": Jet, "laplacian": ForwardLaplacian, "sparse": Sparsity}
LIMIT = 227


def keys_of(layer: str) -> list[str]:
    """What the layer has rules for: operators, packets of overloads, and tags."""
    return sorted(map(str, LAYERS[layer]._rules._rules))


def test_few_rules_are_written_by_hand():
    counts = {layer: len(keys_of(layer)) for layer in LAYERS}
    assert sum(counts.values()) <= LIMIT, counts


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_has_rules(layer):
    assert len(keys_of(layer)) > 10


if __name__ == "__main__":
    for layer in LAYERS:
        keys = keys_of(layer)
        print(f"{layer}: {len(keys)}\n  {', '.join(keys)}")
    print("all:", sum(len(keys_of(layer)) for layer in LAYERS))
