"""make wheels: what it decides to build, and what a wheel says of the torch it needs."""

import subprocess
import sys
import zipfile

import pytest

from tests.support.scripts import loaded

wheels = loaded(".ci/wheels.py")

LISTED = """torch (2.15.0)
Available versions: 2.15.0, 2.14.1, 2.14.0, 2.13.0+cpu, 2.13.0, 2.11.0
  INSTALLED: 2.13.0+cpu
"""
METADATA = """Metadata-Version: 2.4
Name: torchlayers
Version: 0.2.0
Requires-Dist: torch<2.16,>=2.11
Requires-Dist: torch-other
"""
WHEEL = """Wheel-Version: 1.0
Root-Is-Purelib: false
Tag: cp311-cp311-linux_x86_64
"""


def test_versions_are_read_from_what_pip_prints():
    assert wheels.listed_versions(LISTED)[3:] == ["2.13.0+cpu", "2.13.0", "2.11.0"]
    assert wheels.listed_versions("ERROR: No matching distribution found for torch") == []


@pytest.mark.parametrize(
    ("minor", "limit", "version"),
    [("2.13", 1, "2.13.0+cpu"), ("2.13", 8, "2.13.0+cpu"), ("2.14", 8, "2.14.1")],
)
def test_the_newest_version_without_cuda_is_chosen(minor, limit, version):
    assert wheels.chosen(minor, wheels.listed_versions(LISTED), limit) == version


@pytest.mark.parametrize(
    ("minor", "limit", "reason"),
    [
        ("2.14", 1, "about 4 GB to download with CUDA's libraries: pip finds no CPU build"),
        ("2.13", 0.1, r"about 0\.3 GB to download \(LIMIT=0\.1\)"),
        ("2.12", 8, "pip finds no such torch"),
        ("2.1", 8, "pip finds no such torch"),
    ],
)
def test_the_reason_is_said_where_nothing_is_built(minor, limit, reason):
    with pytest.raises(wheels.Failed, match=reason):
        wheels.chosen(minor, wheels.listed_versions(LISTED), limit)


def test_a_wheel_requires_the_torch_it_was_built_with(tmp_path, monkeypatch):
    unpacked = tmp_path / "torchlayers-0.2.0"
    files = {"METADATA": METADATA, "WHEEL": WHEEL}
    for name, text in files.items():
        path = unpacked / "torchlayers-0.2.0.dist-info" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    pack = [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(tmp_path), str(unpacked)]
    subprocess.run(pack, check=True, capture_output=True)
    plain = tmp_path / "torchlayers-0.2.0-cp311-cp311-linux_x86_64.whl"
    monkeypatch.setattr(wheels, "WORK", tmp_path)
    made = wheels.pinned(plain, "2.13.0+cpu", tmp_path)
    assert made.name == "torchlayers-0.2.0+torch2.13-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(made) as archive:
        text = archive.read("torchlayers-0.2.0+torch2.13.dist-info/METADATA").decode()
    assert "Version: 0.2.0+torch2.13\n" in text
    assert "Requires-Dist: torch==2.13.*\nRequires-Dist: torch-other\n" in text


def test_this_python_is_found_and_an_absent_one_is_not(monkeypatch):
    assert wheels.find_python(wheels.HERE) == sys.executable
    monkeypatch.setenv("PYENV_ROOT", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    assert wheels.find_python("3.99") is None


def test_a_stub_of_a_python_that_is_not_installed_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    stub = tmp_path / "python3.99"
    stub.write_text("#!/bin/sh\nexit 127\n")
    stub.chmod(0o755)
    assert wheels.find_python("3.99") is None
    installed = tmp_path / "versions" / "3.99.1" / "bin" / "python"
    installed.parent.mkdir(parents=True)
    installed.write_text("#!/bin/sh\necho 3.99\n")
    installed.chmod(0o755)
    assert wheels.find_python("3.99") == str(installed)


def test_a_command_that_fails_ends_with_its_error():
    program = "import sys; print('one'); sys.exit('ERROR: two')"
    with pytest.raises(wheels.Failed, match=r"^failed: it broke: ERROR: two$"):
        wheels.run([sys.executable, "-c", program], "it broke")


def test_the_table_is_markdown():
    rows = [wheels.Row("3.11", "2.13.0+cpu", "a.whl", "4.1 MB", "0:34", "works")]
    rows.append(wheels.Row("3.10", "any", result="not built: no python3.10 here"))
    lines = wheels.table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["3.11", "2.13.0+cpu", "a.whl", "4.1 MB", "0:34", "works"]
