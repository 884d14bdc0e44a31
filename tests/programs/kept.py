"""Programs that once failed, each by what was wrong."""

from tests.programs.case import Case

KEPT: dict[str, Case] = {}
