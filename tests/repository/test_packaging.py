"""Building and importing the package when something is missing or conflicting."""

import email
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchlayers
from tests.support.scripts import loaded
from torchlayers import _build_check

ROOT = Path(__file__).parents[2]


def run(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


def build_without(module):
    return run(
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['setup.py', 'build_ext'];"
        "__file__ = 'setup.py'; exec(open('setup.py').read())"
    )


@pytest.mark.parametrize(
    ("module", "problem", "remedy"),
    [
        ("torch", "torch is not installed", "pip install 'torch>=2.11,<2.16'"),
    ],
)
def test_a_missing_package_is_named_with_what_to_install(module, problem, remedy):
    build = build_without(module)
    assert build.returncode == 1
    assert problem in build.stderr and remedy in build.stderr
    assert "Traceback" not in build.stderr


@pytest.mark.sweep
def test_a_missing_compiler_is_named_with_what_to_install():
    build = run(
        "import sys; sys.argv = ['setup.py', 'build_ext'];"
        "__file__ = 'setup.py'; exec(open('setup.py').read())",
        CXX="no-such-compiler",
    )
    assert build.returncode == 1
    assert "the C++ compiler 'no-such-compiler' was not found" in build.stderr
    assert "apt-get install g++" in build.stderr


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("key", ["TESTING_ONLY_GenericMode", "Fake"])
def test_import_says_who_else_has_registered_a_fallback_on_our_key(key):
    taken = run(
        "import torch\n"
        "library = torch.library.Library('_', 'IMPL')\n"
        f"library.fallback(lambda *args: None, {key!r})\n"
        "import torchlayers"
    )
    assert f"ImportError: torchlayers needs the dispatch key {key}" in taken.stderr
    assert "registered at" in taken.stderr
    assert "Import only one of the two in a process" in taken.stderr


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("key", ["TESTING_ONLY_GenericMode", "Fake"])
def test_import_says_who_else_has_registered_a_kernel_on_our_key(key):
    taken = run(
        "import torch\n"
        "library = torch.library.Library('aten', 'IMPL')\n"
        f"library.impl('sin', lambda x: x, {key!r})\n"
        "import torchlayers"
    )
    assert f"ImportError: torchlayers needs the dispatch key {key}" in taken.stderr
    assert "aten::sin" in taken.stderr


@pytest.mark.sweep
def test_import_says_what_it_was_built_against():
    other = run("import torch; torch.__version__ = '2.99.0'; import torchlayers")
    assert "ImportError: torchlayers was built against torch 2." in other.stderr
    assert "this is torch 2.99.0" in other.stderr
    assert f"pip install --no-build-isolation --no-deps --editable {ROOT}`" in other.stderr


@pytest.mark.sweep
def test_import_says_how_to_build_what_was_installed(tmp_path):
    (tmp_path / "torchlayers").mkdir()
    checks = Path(torchlayers.__file__).with_name("_build_check.py").read_text()
    (tmp_path / "torchlayers" / "_build_check.py").write_text(checks)
    (tmp_path / "torchlayers" / "_C.torch.txt").write_text("2.99.0+cu132\n")
    other = run(
        f"import sys; sys.path.insert(0, {str(tmp_path / 'torchlayers')!r})\n"
        "import _build_check; _build_check.check()"
    )
    assert "torchlayers was built against torch 2.99.0+cu132" in other.stderr
    assert "in its sources, `pip install --no-build-isolation" in other.stderr
    assert "Or install that version: `pip install torch==2.99.0`" in other.stderr
    assert "torchlayers`" not in other.stderr  # in the package index that is another project


def test_import_warns_of_files_of_the_other_project(tmp_path, monkeypatch):
    (tmp_path / "torch.py").touch()
    monkeypatch.setattr(_build_check, "_OTHER_PROJECT", tmp_path / "torch.py")
    with pytest.warns(UserWarning, match="also holds files of another project") as warned:
        _build_check.check()
    assert "Run `pip uninstall torchlayers`" in str(warned[0].message)


def test_the_version_is_the_same_everywhere_and_above_the_other_project_s():
    version = tuple(int(number) for number in torchlayers.__version__.split("."))
    assert version > (0, 1, 1)  # the package index's
    assert f'\nversion = "{torchlayers.__version__}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\n## {torchlayers.__version__} " in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.full
def test_a_wheel_runs_the_first_example_where_there_is_no_compiler(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet"]
    tools = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    tools.pop("PYTHONPATH", None)  # where pip would find the packages it is to install
    wheels, python = tmp_path / "wheels", tmp_path / "env" / "bin" / "python"
    subprocess.run(
        [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, ROOT],
        env=tools,
        check=True,
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (wheel,) = wheels.glob("*.whl")
    install = [*pip, "--python", python, "install", "--no-deps", wheel]
    subprocess.run(install, env=tools, check=True)
    (packages,) = (tmp_path / "env").glob("lib/*/site-packages")
    (packages / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    example = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [python, "-c", f"{example}\nprint(tl.__file__)"],
        cwd=tmp_path,
        env={"PATH": str(python.parent)},  # no compiler
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(packages)


def test_the_metadata_says_where_everything_is(tmp_path):
    """setuptools accepts pyproject.toml, and the addresses are those of the site's settings."""
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (info,) = tmp_path.glob("*.egg-info")
    metadata = email.message_from_string((info / "PKG-INFO").read_text("utf-8"))
    addresses = dict(each.split(", ") for each in metadata.get_all("Project-URL"))
    assert addresses.keys() == {"Documentation", "Source", "Issues", "Changelog"}
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert f"site_url: {addresses['Documentation']}\n" in settings
    assert f"repo_url: {addresses['Source']}\n" in settings
    assert all(
        f"Programming Language :: Python :: {each}" in metadata.get_all("Classifier")
        for each in loaded(".ci/wheels.py").PYTHONS
    )
    assert "vmap" in metadata["Keywords"]
