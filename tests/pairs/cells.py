"""What comes out of a feature in a nest."""

import warnings

import torch
from torch.distributed.device_mesh import init_device_mesh

import torchlayers as tl
from tests.pairs.nests import NESTS
from tests.pairs.rows import FEATURES
from tests.pairs.rows.ranks import AXIS

RIGHT = "right"


def outcome(feature: str, nest: str) -> str:
    """``right``, what is wrong, or the error's name and text."""
    made_of, pair = NESTS[nest], FEATURES[feature]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts, which are slow or old
        right = made_of(pair.plain)
        try:
            got = made_of(pair.uses)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            assert tl.current_stack() == ()
    try:
        torch.testing.assert_close(got, right, rtol=1e-6, atol=1e-8)
    except AssertionError as error:
        return f"wrong: {error}"
    return RIGHT


def check_on_this_rank(feature: str, nest: str) -> None:
    """Fails with the outcome of a pair over ranks, if it is not right."""
    size = torch.distributed.get_world_size()
    with init_device_mesh("cpu", (size,), mesh_dim_names=(AXIS,)):
        got = outcome(feature, nest)
    assert got == RIGHT, got
