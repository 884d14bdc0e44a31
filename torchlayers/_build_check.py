"""Checks that the extension was built against the installed torch; another one may crash.

It also warns if the other project called torchlayers is installed into the same folder.
"""

import warnings
from pathlib import Path

import torch

_PACKAGE = Path(__file__).parent
_ROOT = _PACKAGE.parent
_RECORD = _PACKAGE / "_C.torch.txt"  # setup.py writes it beside the extension
# A file of the other project that the package index has as torchlayers (docs/releasing.md).
_OTHER_PROJECT = _PACKAGE / "_inferable" / "torch.py"


def check() -> None:
    """Raises ImportError if the extension is missing or built for another minor torch version.

    Warns of files of the other project called torchlayers.
    """
    built = _RECORD.read_text().strip() if _RECORD.exists() else ""
    if not built:
        raise ImportError(
            "torchlayers has no extension: it is a source tree that was not built. Run `pip "
            "install --no-build-isolation --editable .` in it."
        )
    here = torch.__version__
    if _minor(built) != _minor(here):
        if (_ROOT / "setup.py").exists():
            build = f"`pip install --no-build-isolation --no-deps --editable {_ROOT}`"
        else:
            build = (
                "in its sources, `pip install --no-build-isolation --no-deps --force-reinstall .`"
            )
        registered = built.partition("+")[0]  # registries have 2.15.0, not 2.15.0+cu132
        raise ImportError(
            f"torchlayers was built against torch {built}, and this is torch {here}. Rebuild it "
            f"against the installed torch: {build}. Or install that version: `pip install "
            f"torch=={registered}`."
        )
    if _OTHER_PROJECT.exists():
        warnings.warn(
            f"torchlayers: {_PACKAGE} also holds files of another project, which the package index "
            "has as torchlayers. An upgrade or removal of one breaks the other. Run `pip uninstall "
            "torchlayers` until it finds nothing, delete that folder if it is still there, and "
            "install this package again.",
            stacklevel=3,
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
