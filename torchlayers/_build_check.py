"""Checks that the extension was built against the installed torch; another one may crash."""

from pathlib import Path

import torch

_ROOT = Path(__file__).parents[1]
_RECORD = Path(__file__).with_name("_C.torch.txt")  # setup.py writes it beside the extension


def check() -> None:
    """Raises ImportError if the extension is missing or built for another minor torch version."""
    built = _RECORD.read_text().strip() if _RECORD.exists() else ""
    if not built:
        raise ImportError(
            "torchlayers has no extension: it is a source tree that was not built. Run `pip "
            "install --no-build-isolation --editable .` in it."
        )
    here = torch.__version__
    if _minor(built) != _minor(here):
        if (_ROOT / "setup.py").exists():
            build = f"pip install --no-build-isolation --no-deps --editable {_ROOT}"
        else:
            build = (
                "pip install --no-build-isolation --no-deps --force-reinstall --no-cache-dir "
                "--no-binary torchlayers torchlayers` or, in its sources, `pip install "
                "--no-build-isolation --no-deps --force-reinstall ."
            )
        raise ImportError(
            f"torchlayers was built against torch {built}, and this is torch {here}. Rebuild it "
            f"against the installed torch: `{build}`. Or install that version: `pip install "
            f"torch=={built}`."
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
