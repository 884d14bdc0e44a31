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


@pytest.mark.full
def test_device_tests_pass_on_a_second_device(full):
    """With --full every test that runs on any device; otherwise the tests about devices."""
    names = devices.ANYWHERE if full else devices.ABOUT_DEVICES
    files = [str(Path("tests") / name) for name in sorted(names)]
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
