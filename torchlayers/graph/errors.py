"""What differentiate raises."""

from torchlayers.errors import TransformError


class GraphError(TransformError):
    """A graph can't be differentiated, or was called with other inputs than it is for."""
