"""Sample calls for operators with rules that op_db's samples do not reach."""

import torch

from tests.rules.forward.samples import IMAGE, Sample, X, Y, unit, values

A = torch.ops.aten
MASK = X > 0

SAMPLES: dict[str, Sample] = {
    "_log_softmax_backward_data": (
        lambda g, y: A._log_softmax_backward_data(g, y, 1, torch.float64),
        [X, Y.log_softmax(1)],
    ),
}
