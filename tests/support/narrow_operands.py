"""Operators of x, in float64, and an operand of fewer digits."""

import torch
import torch.nn.functional as F

NARROW = {
    "float32": torch.tensor([0.3, 0.7]),
    "float16": torch.tensor([0.3, 0.7], dtype=torch.float16),
    "int64": torch.tensor([3, 7]),
    "uint8": torch.tensor([3, 7], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "bool without dimensions": torch.tensor(True),
    "float32 without dimensions": torch.tensor(0.3),
    "int64 without dimensions": torch.tensor(3),
}
OPERATORS = {
    "power": torch.pow,
    "base": lambda x, y: torch.pow(y, x),
    "quotient": torch.div,
    "dividend": lambda x, y: torch.div(y, x),
    "product": torch.mul,
    "atan2": torch.atan2,
    "atan2, reversed": lambda x, y: torch.atan2(y, x),
    "hypot": torch.hypot,
    "xlogy": torch.xlogy,
    "xlogy, reversed": lambda x, y: torch.xlogy(y, x),
    "logaddexp": torch.logaddexp,
    "logaddexp, reversed": lambda x, y: torch.logaddexp(y, x),
    "logaddexp2": torch.logaddexp2,
    "logaddexp2, reversed": lambda x, y: torch.logaddexp2(y, x),
    "dist": lambda x, y: torch.dist(x, y + 0),  # it does not take booleans
    "mse_loss": lambda x, y: F.mse_loss(x, y.expand(2)),
    "mse_loss, elements": lambda x, y: F.mse_loss(x, y.expand(2), reduction="none"),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y.expand(2), beta=2.0),
    "smooth_l1_loss, reversed": lambda x, y: F.smooth_l1_loss(y.expand(2), x, beta=2.0),
    "huber_loss": lambda x, y: F.huber_loss(x, y.expand(2), delta=0.5),
    "igamma": lambda x, y: torch.igamma(y, x),
    "igammac": lambda x, y: torch.igammac(y, x),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "where": lambda x, y: torch.where(x > 0.4, x * y, x),
}
