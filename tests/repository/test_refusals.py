"""setup.py refuses versions that pyproject.toml does not support, before it compiles anything."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scripts import loaded

ROOT = Path(__file__).parents[2]
COMPILING = "the checks let it compile"


@pytest.fixture
def build(tmp_path):
    """Runs setup.py with a stub of torch and metadata of setuptools; returns what it prints."""

    def run(command, *, before="", torch="2.13.0", setuptools="80.0.0", **environment):
        install(tmp_path, "torch", torch)
        install(tmp_path, "setuptools", setuptools)
        program = (
            f"{before}\nimport sys; sys.argv = ['setup.py', '-q', {command!r}]\n"
            "__file__ = 'setup.py'; exec(open('setup.py').read())"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(tmp_path)} | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        return done.stderr

    utils = tmp_path / "torch" / "utils"
    utils.mkdir(parents=True)
    (utils / "__init__.py").touch()
    (utils / "cpp_extension.py").write_text(f"raise SystemExit({COMPILING!r})\n")
    return run


def install(folder, name, version):
    """Writes a package's metadata; and torch's module, from which a build reads the version."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if (folder / name).exists():
        (folder / name / "__init__.py").write_text(f"__version__ = {version!r}\n")


@pytest.mark.parametrize("version", ["2.11.0", "2.15.3+cu132"])
def test_a_supported_torch_is_built_with(build, version):
    assert build("build_ext", torch=version) == f"{COMPILING}\n"


@pytest.mark.parametrize("command", ["egg_info", "build_ext"])
@pytest.mark.parametrize("version", ["2.10.0", "2.16.0a0+git1234", "3.0"])
def test_another_torch_is_refused_with_what_to_install(build, version, command):
    assert build(command, torch=version) == (
        f"torchlayers can't be built: it needs torch>=2.11,<2.16, and this is torch {version}. "
        "Run `pip install 'torch>=2.11,<2.16'`, or try this one all the same: "
        "`TORCHLAYERS_ANY_TORCH=1 pip install --no-build-isolation --no-deps .`.\n"
    )


def test_another_torch_can_be_tried(build):
    tried = build("build_ext", torch="2.16.0", TORCHLAYERS_ANY_TORCH="1")
    assert tried == f"{COMPILING}\n"


def in_isolation(tmp_path, version):
    """As pip builds: torch is installed where it installs to, which is not on the path."""
    outside = tmp_path / "site-packages"
    install(outside, "torch", version)
    return f"import sysconfig; sysconfig.get_path = lambda name: {str(outside)!r}"


@pytest.mark.parametrize("command", ["dist_info", "bdist_wheel"])
def test_an_isolated_build_with_another_torch_is_refused(build, tmp_path, command):
    refused = build(command, torch="2.15.0", before=in_isolation(tmp_path, "2.13.0+cpu"))
    assert refused.startswith(
        "torchlayers can't be built: pip brought torch 2.15.0 for the build, and torch 2.13.0+cpu "
        "is installed. Run `pip install 'torch"
    )
    assert "`pip install --no-build-isolation .`" in refused


def test_an_isolated_build_names_the_unsupported_torch_that_is_installed(build, tmp_path):
    refused = build("egg_info", torch="2.15.0", before=in_isolation(tmp_path, "2.10.0"))
    assert "it needs torch>=2.11,<2.16, and this is torch 2.10.0" in refused


def test_an_isolated_build_with_the_installed_torch_is_not_refused(build, tmp_path):
    before = in_isolation(tmp_path, "2.15.0")
    assert build("bdist_wheel", torch="2.15.1+cpu", before=before) == f"{COMPILING}\n"


@pytest.mark.parametrize("command", ["egg_info", "sdist", "build_ext"])
def test_an_old_setuptools_is_refused_before_it_reads_pyproject(build, command):
    assert build(command, setuptools="60.10.0") == (
        "torchlayers can't be built: it needs setuptools>=77, and this is setuptools 60.10.0. Run "
        "`pip install 'setuptools>=77'`.\n"
    )


def test_an_old_python_is_refused(build):
    old = "import sys; sys.version = sys.version.replace(sys.version.split()[0], '3.9.18')"
    assert build("egg_info", before=old) == (
        "torchlayers can't be built: it needs Python>=3.10, and this is Python 3.9.18. Make an "
        "environment with another Python, as `python3.12 -m venv .venv` does.\n"
    )


def test_an_old_python_can_read_setup():
    ast.parse((ROOT / "setup.py").read_text("utf-8"), feature_version=(3, 8))


def test_versions_agree_wherever_they_stand():
    setup, wheels = loaded("setup.py"), loaded(".ci/wheels.py")
    build = setup.build_requirements()
    texts = {
        name: (ROOT / name).read_text("utf-8")
        for name in ("pyproject.toml", "Makefile", "README.md", "docs/index.md", "docs/install.md")
    }
    assert f'dependencies = ["torch{build["torch"]}",' in texts["pyproject.toml"]
    assert "setuptools" + build["setuptools"] in wheels.TOOLS
    for name, text in texts.items():
        assert {*re.findall(r"setuptools([<>=]+[\d.]+)", text)} == {build["setuptools"]}, name
    least, above = map(setup.first_numbers, build["torch"].split(","))
    minors = [setup.first_numbers(minor) for minor in wheels.TORCHES]
    assert (minors[0], minors[-1]) == (least, (above[0], above[1] - 1))
    ends = f"{wheels.TORCHES[0]} to {wheels.TORCHES[-1]}"
    for name, text in texts.items():
        assert name == "pyproject.toml" or ends in text, name
    tried = re.findall(r"\$\(MAKE\) test TORCH=torch==([\d.]+)", texts["Makefile"])
    assert [*map(setup.first_numbers, tried)] == [minors[0], minors[-1]]
