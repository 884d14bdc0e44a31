"""``--full`` runs the long sweeps too (make test-full), ``--device`` all that can be on a GPU."""

import signal
from pathlib import Path

import pytest
import torch

from tests import devices
from tests.torch_versions import expect_failures

torch.set_num_threads(1)  # the tests run in parallel processes

# torch.manual_seed keeps the seed for devices that are not there, each with the text of the whole
# Python stack: a quarter of what the tests took.
for device in (torch.cuda, torch.xpu, torch.mtia):
    if not device.is_available():
        device.manual_seed_all = lambda seed: None

# A shell has what it runs in the background ignore Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["packages"]  # unless named: they are run apart (make test-full)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long sweeps in full")
    parser.addoption(
        "--device",
        default="cpu",
        choices=devices.NAMES,
        help="where tensors are made; the tests that can't be run there are skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    devices.use(config.getoption("--device"))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """What is not for this device, unless it is named: it may make no sense there from its first
    line on."""
    return devices.is_left_out(collection_path) or None


def pytest_report_header() -> str | None:
    return devices.who_are_left_out()


@pytest.fixture
def device() -> torch.device:
    """Where this run of the tests makes its tensors."""
    return devices.used()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests marked `full` out of the quick run, and says how many they are; likewise
    those of the second device."""
    expect_failures(items)
    devices.skip_what_does_not_apply(items)
    is_full = config.getoption("--full")
    left_out = [
        item
        for item in items
        if devices.is_for_the_second(item) or (item.get_closest_marker("full") and not is_full)
    ]
    elsewhere = {*left_out}
    items[:] = [item for item in items if item not in elsewhere]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))
