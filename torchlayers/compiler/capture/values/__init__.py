"""Values of tensors and numbers that a captured function reads as Python values."""
