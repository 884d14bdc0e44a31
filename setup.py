"""Builds torchlayers with its one extension, torchlayers._C.

``DEBUG=1`` builds it with symbols, assertions and no optimisation; ``SANITIZE=address`` with
the address sanitizer (``make sanitize`` builds it so and runs the stack's tests).
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup

NEEDED = "torch==2.13.0 setuptools wheel ninja nlohmann-json"


def stop(problem, remedy):
    sys.exit(f"torchlayers can't be built: {problem}. {remedy}")


def torch_extension_tools():
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError:
        stop(
            "torch is not installed in this environment",
            f"Run `pip install {NEEDED}` and then `pip install --no-build-isolation .`: the "
            "extension has to be built against the torch it will run with.",
        )
    return torch, cpp_extension


def json_headers():
    # torch's functorch headers include <nlohmann/json.hpp>, which its wheels leave out.
    try:
        import nlohmann_json
    except ImportError:
        stop("the JSON header is missing", "Run `pip install nlohmann-json`.")
    return str(Path(nlohmann_json.__file__).parent / "include")


def check_compiler():
    compiler = os.environ.get("CXX", "g++" if sys.platform == "linux" else "clang++")
    if shutil.which(compiler.split()[0]) is None:
        stop(
            f"the C++ compiler {compiler!r} was not found",
            "Install g++ 11 or newer (`apt-get install g++`), or set CXX to yours.",
        )


def get_extensions(cpp_extension):
    sanitizer = os.environ.get("SANITIZE")
    debug = os.environ.get("DEBUG", "0") == "1" or bool(sanitizer)
    sanitize = [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer"] if sanitizer else []
    here = Path(__file__).parent
    sources = sorted(str(path.relative_to(here)) for path in (here / "csrc").rglob("*.cpp"))
    return [
        cpp_extension.CppExtension(
            "torchlayers._C",
            sources,
            include_dirs=[json_headers()],
            # No NDEBUG in a debug build, so that C++ assertions run.
            extra_compile_args=["-Wall", "-fvisibility=hidden", *sanitize]
            + (["-O0", "-g", "-UNDEBUG"] if debug else ["-O2", "-g0"]),
            extra_link_args=["-g", *sanitize] if debug else ["-s"],
        )
    ]


def main():
    if "egg_info" in sys.argv or "sdist" in sys.argv or "dist_info" in sys.argv:
        setup()  # metadata and sources need neither torch nor a compiler
        return
    _, cpp_extension = torch_extension_tools()
    check_compiler()
    setup(
        ext_modules=get_extensions(cpp_extension),
        cmdclass={"build_ext": cpp_extension.BuildExtension.with_options(use_ninja=has_ninja())},
    )


def has_ninja():
    return shutil.which("ninja") is not None


main()
