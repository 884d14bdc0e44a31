"""What is said of any device, said of a second one, where there is no GPU.

In a process of its own: a device of this kind is all of the process's, and for good.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import devices, second_device

ROOT = Path(__file__).parent.parent
WITHOUT_PLUGINS = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its memory is had by mmap")


def test_on_a_second_device(full):
    """All that can be run on any device with --full; what is about devices in any case."""
    names = devices.ANYWHERE if full else devices.ABOUT_DEVICES
    files = [str(Path("tests") / name) for name in sorted(names)]
    done = subprocess.run(
        [*WITHOUT_PLUGINS, "--device", second_device.NAME, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]


def test_a_build_that_was_killed_holds_up_no_other():
    """What torch has left in the folder then."""
    second_device.FOLDER.mkdir(parents=True, exist_ok=True)
    (second_device.FOLDER / "lock").touch()
    install = "from tests import second_device; second_device.install()"
    subprocess.run([sys.executable, "-c", install], cwd=ROOT, check=True, timeout=300)
