"""The fixture `ranks`: two processes for all cases of a run, and with --full also four."""

import pytest
import torch

from tests.distributed.processes import Ranks

collect_ignore_glob = [] if torch.distributed.is_available() else ["test_*.py"]


@pytest.fixture(scope="session", params=[2, pytest.param(4, marks=pytest.mark.full)])
def ranks(request):
    processes = Ranks(request.param)
    yield processes
    processes.close()
