"""The memory of a tensor: what shares it, and whether its elements do."""

from torch import Tensor


def storage_of(tensor: Tensor) -> int | None:
    """The identity of the tensor's storage; None where it has none, as a sparse tensor."""
    try:
        storage: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return storage


def without_shared_elements(tensor: Tensor) -> Tensor:
    """The tensor, copied if it is expanded: a tensor that is written to, and a primal, can't be."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    is_expanded = any(size != 1 and step == 0 for size, step in pairs)
    return tensor.contiguous() if is_expanded else tensor
