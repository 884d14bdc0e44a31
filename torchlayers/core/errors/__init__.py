"""The errors torchlayers raises, and functions that find the user's line for their messages.

Each error is also the built-in exception that torch.func raises in the same case, so
that programs written for torch.func catch it too.
"""

from torchlayers.core.errors.batching_errors import (
    AxisError,
    BatchedOperatorError,
    BatchedValueError,
    DimensionError,
    OutDimError,
    RandomnessError,
)
from torchlayers.core.errors.messages import explain as explain
from torchlayers.core.errors.messages import instead as instead
from torchlayers.core.errors.messages import message_of as message_of
from torchlayers.core.errors.messages import untracked_capture as untracked_capture
from torchlayers.core.errors.transform_errors import (
    ArgnumsError,
    CallError,
    CheckError,
    DataDependentError,
    DtypeError,
    EscapedTensorError,
    FunctionError,
    InPlaceError,
    MemoryBudgetError,
    MissingDerivativeError,
    NanError,
    NotScalarError,
    NotTensorError,
    OutputError,
    RecomputationError,
    RuleError,
    StructureError,
    TapError,
    TorchVersionError,
    TransformError,
)
from torchlayers.core.errors.user_lines import is_user_file as is_user_file
from torchlayers.core.errors.user_lines import line_of_node as line_of_node
from torchlayers.core.errors.user_lines import location as location
from torchlayers.core.errors.user_lines import location_of as location_of
from torchlayers.core.errors.user_lines import quoted_line as quoted_line
from torchlayers.core.errors.user_lines import warn as warn

__all__ = [
    "ArgnumsError",
    "AxisError",
    "BatchedOperatorError",
    "BatchedValueError",
    "CallError",
    "CheckError",
    "DataDependentError",
    "DimensionError",
    "DtypeError",
    "EscapedTensorError",
    "FunctionError",
    "InPlaceError",
    "MemoryBudgetError",
    "MissingDerivativeError",
    "NanError",
    "NotScalarError",
    "NotTensorError",
    "OutDimError",
    "OutputError",
    "RandomnessError",
    "RecomputationError",
    "RuleError",
    "StructureError",
    "TapError",
    "TorchVersionError",
    "TransformError",
]

for _name in __all__:  # tracebacks show the module that programs import them from
    globals()[_name].__module__ = "torchlayers.errors"
