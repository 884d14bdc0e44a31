"""The error that differentiate raises."""

from torchlayers.core.errors import TransformError


class GraphError(TransformError):
    """A graph can't be differentiated, or was called with inputs that it is not made for.

    Example:
        >>> torchlayers.graph.differentiate(torch.fx.symbolic_trace(torch.nn.Tanh()))
        Traceback (most recent call last):
        torchlayers.graph.errors.GraphError: torchlayers: differentiate: the graph has to be
        retraced, but has no recorded value for its input `input_1`. Pass example_inputs, the
        arguments of one call.
    """
