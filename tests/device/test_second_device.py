"""Runs the device tests on a second device, for machines without a GPU.

In a separate process: registering such a device affects the whole process permanently.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.device import second_device
from tests.support import devices

ROOT = Path(__file__).parents[2]
WITHOUT_PLUGINS = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its memory is had by mmap")


@pytest.mark.parametrize("name", sorted(devices.ANYWHERE))
def test_what_runs_anywhere_exists(name):
    assert (ROOT / "tests" / name).exists()


@pytest.mark.full
def test_all_that_runs_anywhere_passes_on_a_second_device():
    files = [str(Path("tests") / name) for name in sorted(devices.ANYWHERE)]
    done = subprocess.run(
        [*WITHOUT_PLUGINS, "--device", second_device.NAME, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]


@pytest.mark.full
def test_killed_build_does_not_block_another():
    """Despite the files that torch leaves in the folder."""
    second_device.FOLDER.mkdir(parents=True, exist_ok=True)
    (second_device.FOLDER / "lock").touch()
    install = "from tests.device import second_device; second_device.install()"
    subprocess.run([sys.executable, "-c", install], cwd=ROOT, check=True, timeout=300)
