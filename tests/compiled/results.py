"""What a recording's function returns, of what its graph computes."""

from collections.abc import Sequence
from typing import Any

from torchlayers.compiler.capture.recording import Recording


def results(recording: Recording, inputs: Sequence[Any], computed: Sequence[Any]) -> list[Any]:
    """The leaves, in order; `inputs` are the arguments'."""
    sources = {"computed": computed, "argument": inputs, "captured": recording.captured}
    return [
        value if source == "constant" else sources[source][value]
        for source, value in recording.outputs
    ]
