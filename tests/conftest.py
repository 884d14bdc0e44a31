"""Options: ``--full`` runs all cases (make test-full), ``--device`` selects the device,
``--shuffle`` runs the tests in another order."""

import inspect
import os
import signal
from pathlib import Path

import pytest
import torch

from tests.support import devices, draw, order
from tests.support.expected_failures import expect_failures

torch.set_num_threads(1)  # the tests run in parallel processes

# Tests look at Inductor's code after the first call; tests/compiler/runtime/test_background.py and
# test_background_processes.py are about calls that don't wait for it.
os.environ.setdefault("TORCHLAYERS_COMPILE_WAIT", "1")

# torch.manual_seed saves the seed for each absent device with the text of the whole Python stack,
# which took a quarter of the test time.
for device in (torch.cuda, torch.xpu, torch.mtia):
    if not device.is_available():
        device.manual_seed_all = lambda seed: None

# A shell makes background processes ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["packages"]  # unless named explicitly; they run separately (make test-full)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long sweeps in full")
    parser.addoption(
        "--device",
        default="cpu",
        choices=devices.NAMES,
        help="where tensors are made; the tests that can't be run there are skipped",
    )
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run files, and tests in each, in another order"
    )


def pytest_configure(config: pytest.Config) -> None:
    devices.use(config.getoption("--device"))
    draw.seed()  # before there are other processes


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignores files that are not for this device, whose imports may already fail there, unless
    named."""
    return devices.is_left_out(collection_path) or None


def pytest_report_header() -> str | None:
    return devices.who_are_left_out()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption("--full"):
        terminalreporter.write_line(draw.describe())


@pytest.fixture
def device() -> torch.device:
    """The device on which this run of the tests makes its tensors."""
    return devices.used()


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, obj: object
) -> list[pytest.Item] | None:
    """Makes no items, of which there are many thousands, for tests that are not run."""
    marks = vars(obj).get("pytestmark", ()) if inspect.isfunction(obj) else ()
    is_later = any(mark.name == "full" for mark in marks)
    return [] if is_later and not collector.config.getoption("--full") else None


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not metafunc.config.getoption("--full"):
        draw.thin_out(metafunc)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests for the second device, and from the quick run cases that are marked `full` or
    not drawn."""
    expect_failures(items)
    devices.skip_what_does_not_apply(items)
    is_full = config.getoption("--full")
    chosen, others = [], []
    for item in items:
        is_later = item.get_closest_marker("full") or not draw.is_for_today(item)
        is_left_out = devices.is_for_the_second(item) or (is_later and not is_full)
        (others if is_left_out else chosen).append(item)
    config.hook.pytest_deselected(items=others)
    seed = config.getoption("--shuffle")
    items[:] = chosen if seed is None else order.shuffled(chosen, seed)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))
