"""Public names for counting what collectives send."""

from torchlayers.distributed.traffic import Sent as Sent
from torchlayers.distributed.traffic import counting as counting

__all__ = ["Sent", "counting"]
