"""Building and importing, where something is in the way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
        ("torch", "torch is not installed", "pip install torch"),
        ("nlohmann_json", "the JSON header is missing", "pip install nlohmann-json"),
    ],
)
def test_a_missing_package_is_named_with_what_to_install(module, problem, remedy):
    build = build_without(module)
    assert build.returncode == 1
    assert problem in build.stderr and remedy in build.stderr
    assert "Traceback" not in build.stderr


def test_a_missing_compiler_is_named_with_what_to_install():
    build = run(
        "import sys; sys.argv = ['setup.py', 'build_ext'];"
        "__file__ = 'setup.py'; exec(open('setup.py').read())",
        CXX="no-such-compiler",
    )
    assert build.returncode == 1
    assert "the C++ compiler 'no-such-compiler' was not found" in build.stderr
    assert "apt-get install g++" in build.stderr


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


def test_import_says_what_it_was_built_against():
    other = run("import torch; torch.__version__ = '2.99.0'; import torchlayers")
    assert "ImportError: torchlayers was built against torch 2." in other.stderr
    assert "this is torch 2.99.0" in other.stderr
    assert "pip install --no-build-isolation" in other.stderr
