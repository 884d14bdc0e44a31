"""The memory of a tensor, as a number that two tensors share if they share memory."""

from torch import Tensor


def storage_of(tensor: Tensor) -> int | None:
    """The identity of the tensor's storage; None where it has none, as a sparse tensor."""
    try:
        storage: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return storage
