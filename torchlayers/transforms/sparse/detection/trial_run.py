"""The run in which a pattern is detected leaves nothing, as later calls with it do without."""

from collections.abc import Iterator
from contextlib import contextmanager

from torchlayers.core.device import RandomState
from torchlayers.fx.trial_nodes import mark_trial_nodes
from torchlayers.random.rewound_draws import rewind_draws


@contextmanager
def trial_run() -> Iterator[None]:
    """Undoes random draws on exit; a captured graph drops the operators that ran inside."""
    random = RandomState()
    with rewind_draws(), mark_trial_nodes():
        try:
            yield
        finally:
            random.restore()
