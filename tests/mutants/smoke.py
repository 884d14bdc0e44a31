"""A plugin of pytest for mutants: none may break what every program does.

A mutant that can't be imported, or that spoils the gradient of sin, would be seen by any test.
"""

import pytest

EXIT_STATUS = 70


def pytest_collection_finish() -> None:
    import torch

    import torchlayers

    if torchlayers.grad(torch.sin)(torch.tensor(0.0)) != 1:
        pytest.exit("grad(sin) is wrong", EXIT_STATUS)
