"""The torch that the extension was built against: another one can't load it, or crashes."""

from pathlib import Path

import torch

_RECORD = Path(__file__).with_name("_C.torch.txt")  # setup.py writes it beside the extension


def check() -> None:
    """Raises an ImportError where this torch is of another minor version than that one."""
    built = _RECORD.read_text().strip() if _RECORD.exists() else ""
    if not built:
        raise ImportError(
            "torchlayers has no extension: it is a source tree that was not built. Run `pip "
            "install --no-build-isolation --editable .` in it."
        )
    here = torch.__version__
    if _minor(built) != _minor(here):
        raise ImportError(
            f"torchlayers was built against torch {built}, and this is torch {here}. Build it "
            "against this one: `pip install --no-build-isolation --no-cache-dir --force-reinstall "
            f"--no-deps torchlayers`; or install the other: `pip install torch=={built}`."
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
