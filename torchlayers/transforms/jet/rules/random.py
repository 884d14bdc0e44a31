"""Random operators whose results have derivatives: the draws are constants."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.transforms.jet.functions import where
from torchlayers.transforms.jet.layer import rule
from torchlayers.transforms.jet.series import Series

aten: Any = torch.ops.aten


@rule(aten.native_dropout)
def native_dropout(value: Any, x: Series, p: float, train: bool | None) -> Any:
    if train is False:
        return x, None
    return x * value[1] * (0 if p == 1 else 1 / (1 - p)), None
