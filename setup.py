"""Builds torchlayers with its one extension, torchlayers._C.

``DEBUG=1`` builds it with symbols, assertions and no optimisation; ``SANITIZE=address`` with
the address sanitizer (``make sanitize`` builds it so and runs the stack's tests).
``TORCHLAYERS_ANY_TORCH=1`` builds it with a torch that is not supported (docs/versions.md).

Four things make it quick, and `make build-time` says what each file takes. What files read of
torch is compiled once, ahead of them (csrc/precompiled.h). Files are compiled many at a time, as
one unit, because each compilation begins with seconds for templates of torch's. g++ optimizes as
far as it is noticed (GCC_OPTIMIZATION). And torch puts ccache in front of it, where that is
installed.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
PYPROJECT = (HERE / "pyproject.toml").read_text("utf-8")
# Bytes of source that are compiled as one unit, by the folder that the files are in, or in folders
# of: fewer units are less work in all, more of them make the build after a change of one file
# shorter. Rules change most often. What uses Python, or TorchScript's graphs, is by itself, because
# a unit that reads pybind11 or torch's ir.h takes seconds for it.
UNIT_SIZES = {
    "rules/batching": 60_000,
    "rules": 60_000,
    "python": 330_000,
    "graph": 330_000,
    "": 210_000,
}
# What g++ is told for speed: most of what -O2 gains, in less time. The programs of
# benchmarks.instructions execute -3 to +0.7 % of what they did before, when all was compiled with
# -O2. Collecting its garbage would cost more than the memory is worth.
GCC_OPTIMIZATION = [
    *("-O1", "-fstrict-aliasing", "-finline-small-functions", "-findirect-inlining"),
    *("-foptimize-sibling-calls", "-fipa-ra", "-fcaller-saves", "-fthread-jumps", "-fno-tree-pta"),
    *("-fcse-follow-jumps", "-frerun-cse-after-loop", "-fexpensive-optimizations", "-fpeephole2"),
    *("--param", "ggc-min-heapsize=2097152"),
]


def stop(problem, remedy):
    sys.exit(f"torchlayers can't be built: {problem}. {remedy}")


def torch_extension_tools():
    try:
        import torch
    except ImportError:
        stop(
            "torch is not installed in this environment",
            f"Run `{install_requirements()}` and then `pip install --no-build-isolation .`: the "
            "extension has to be built against the torch it will run with.",
        )
    check_torch(torch.__version__)
    from torch.utils import cpp_extension

    return torch, cpp_extension


def check_compiler():
    compiler = os.environ.get("CXX", "g++" if sys.platform == "linux" else "clang++")
    if shutil.which(compiler.split()[0]) is None:
        stop(
            f"the C++ compiler {compiler!r} was not found",
            "Install g++ 11 or newer (`apt-get install g++`), or set CXX to yours.",
        )


def units():
    """The files that are compiled together: lists of them, by the name of the unit.

    Names in anonymous namespaces have to differ within csrc/rules, within csrc/rules/batching,
    within csrc/python, within csrc/graph, and in all other rooms together.
    """
    csrc = HERE / "csrc"
    by_folder = {}
    for path in sorted(csrc.rglob("*.cpp")):
        name = path.relative_to(csrc).as_posix()
        folder = next(folder for folder in UNIT_SIZES if name.startswith(folder))
        by_folder.setdefault(folder, []).append(path)
    sources_of_units = {}
    for folder, sources in by_folder.items():
        size = size_of(sources)
        share = size / max(1, round(size / UNIT_SIZES[folder]))
        prefix = folder.replace("/", "_") or "others"
        so_far = 0
        for path in sources:
            sources_of_units.setdefault(f"{prefix}_{int(so_far / share)}", []).append(path)
            so_far += path.stat().st_size
    return sources_of_units


def size_of(sources):
    return sum(path.stat().st_size for path in sources)


def write_units(folder):
    """Writes a file for each unit that includes its sources, and returns these files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, sources in units().items():
        path = folder / f"{name}.cpp"
        text = "".join(f'#include "{source.resolve()}"\n' for source in sources)
        if not path.exists() or path.read_text() != text:  # what is as it was is not compiled
            path.write_text(text)
        written.append(str(path))
    for stale in {*map(str, folder.glob("*.cpp"))} - {*written}:
        Path(stale).unlink()
    return written


def optimization(cpp_extension):
    command = [*shlex.split(cpp_extension.get_cxx_compiler()), "--version"]
    version = subprocess.run(command, capture_output=True, text=True).stdout
    return ["-O2"] if "clang" in version else GCC_OPTIMIZATION


def get_extensions(cpp_extension):
    sanitizer = os.environ.get("SANITIZE")
    debug = os.environ.get("DEBUG", "0") == "1" or bool(sanitizer)
    sanitize = [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer"] if sanitizer else []
    return [
        cpp_extension.CppExtension(
            "torchlayers._C",
            sources=[],  # the units, which are written where the build is
            include_dirs=[str(HERE.resolve() / "csrc")],
            # No NDEBUG in a debug build, so that C++ assertions run.
            extra_compile_args=["-std=c++20", "-Wall", "-fvisibility=hidden", *sanitize]
            + (["-O0", "-g", "-UNDEBUG"] if debug else [*optimization(cpp_extension), "-g0"]),
            extra_link_args=["-g", *sanitize] if debug else ["-s"],
        )
    ]


def build_command(torch, cpp_extension):
    def record_torch(folder):
        """What torchlayers/_build_check.py reads beside the extension."""
        (folder / "_C.torch.txt").write_text(f"{torch.__version__}\n")

    class Build(cpp_extension.BuildExtension):
        def finalize_options(self):
            super().finalize_options()
            if self.editable_mode:  # setuptools would compile everything anew in a temporary folder
                self.build_temp = str(HERE / "build" / "temp")

        def build_extension(self, ext):
            folder = Path(self.build_temp).resolve()
            ext.sources = write_units(folder / "units")
            header = self.precompile(ext, folder)
            ext.extra_compile_args = ["-include", str(header), *ext.extra_compile_args]
            super().build_extension(ext)
            record_torch(Path(self.get_ext_fullpath(ext.name)).parent)

        def copy_extensions_to_source(self):
            super().copy_extensions_to_source()
            record_torch(HERE / "torchlayers")

        def precompile(self, ext, folder):
            """csrc/precompiled.h beside its compiled form, which compilers look for there."""
            header = folder / "precompiled.h"
            includes = [*self.compiler.include_dirs, *ext.include_dirs]
            command = [
                *shlex.split(cpp_extension.get_cxx_compiler()),
                *self.compiler.compiler_so[1:],
                *(f"-I{path}" for path in includes),
                *ext.extra_compile_args,
                *("-x", "c++-header", str(header), "-o", f"{header}.gch"),
            ]
            csrc = HERE.resolve() / "csrc"
            included = csrc / "precompiled.h"
            texts = [included.read_text(), (csrc / "core" / "aten_functions.h").read_text()]
            made_by = "\n".join([torch.__version__, shlex.join(command), *texts])
            stamp = folder / "precompiled.txt"
            if not stamp.exists() or stamp.read_text() != made_by:
                header.write_text(f'#include "{included}"\n')
                subprocess.run(command, check=True)
                stamp.write_text(made_by)
            return header

    # A compiler takes up to 2 GB, and ninja would start two more of them than there are cores.
    os.environ.setdefault("MAX_JOBS", str(os.cpu_count()))
    # What ccache has to overlook where a precompiled header is used.
    os.environ.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")
    return Build.with_options(use_ninja=shutil.which("ninja") is not None)


# Versions that are not supported are refused before anything is compiled. pyproject.toml has the
# versions, and Python parses TOML only since 3.11. Older Pythons have to get as far as the refusal,
# so this file has no newer syntax than 3.8's.


def build_requirements():
    """The versions that pyproject.toml requires: {"torch": ">=2.11,<2.16", "wheel": "", ...}."""
    (listed,) = re.findall(r"^requires = \[(.*?)\]", PYPROJECT, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r'"([\w-]+)([^";]*)', listed))


def install_requirements():
    return "pip install " + shlex.join(map("".join, build_requirements().items()))


def installed_version(name, **where):
    from importlib.metadata import distributions  # since Python 3.8

    return next((package.version for package in distributions(name=name, **where)), None)


def first_numbers(version):
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def check_version(name, version, bounds, remedy):
    least, *above = map(first_numbers, bounds.split(","))
    version_numbers = first_numbers(version)
    if version_numbers < least or any(version_numbers >= bound for bound in above):
        stop(f"it needs {name}{bounds}, and this is {name} {version}", remedy)


def check_python_and_setuptools():
    bounds = re.search(r'^requires-python = "(.*)"', PYPROJECT, re.MULTILINE)[1]
    remedy = "Make an environment with another Python, as `python3.12 -m venv .venv` does."
    check_version("Python", sys.version.split()[0], bounds, remedy)
    bounds = build_requirements()["setuptools"]  # older ones reject pyproject.toml
    remedy = f"Run `pip install 'setuptools{bounds}'`."
    check_version("setuptools", installed_version("setuptools"), bounds, remedy)


def check_torch(version):
    """Refuses a torch that is not supported, and a build against another than the installed one."""
    if os.environ.get("TORCHLAYERS_ANY_TORCH") == "1":
        return
    # In an isolated build pip removes the environment that it installs to from the path.
    hidden = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")} - {*sys.path}
    hidden_version = installed_version("torch", path=[*hidden])
    bounds = build_requirements()["torch"]
    remedy = (
        f"Run `pip install 'torch{bounds}'`, or try this one all the same: "
        "`TORCHLAYERS_ANY_TORCH=1 pip install --no-build-isolation --no-deps .`."
    )
    check_version("torch", hidden_version or version, bounds, remedy)
    if hidden_version and first_numbers(hidden_version) != first_numbers(version):
        stop(
            f"pip brought torch {version} for the build, and torch {hidden_version} is installed",
            f"Run `{install_requirements()}` and then `pip install --no-build-isolation .`, "
            "which builds against the installed torch.",
        )


def main():
    check_python_and_setuptools()
    if "egg_info" in sys.argv or "sdist" in sys.argv or "dist_info" in sys.argv:
        # Metadata and sources need neither torch nor a compiler. pip asks for metadata before it
        # downloads a torch that they require.
        version = installed_version("torch")
        if version:
            check_torch(version)
        setup()
        return
    torch, cpp_extension = torch_extension_tools()
    check_compiler()
    setup(
        ext_modules=get_extensions(cpp_extension),
        cmdclass={"build_ext": build_command(torch, cpp_extension)},
    )


if __name__ == "__main__":
    main()
