"""Parts of error messages, and advice on errors of torch's own."""

from typing import Any

from torchlayers.core.errors.transform_errors import TransformError
from torchlayers.core.errors.user_lines import location, location_of


def message_of(error: BaseException) -> str:
    """What an error says, to be said again in an error that begins with "torchlayers:" itself."""
    return str(error).removeprefix("torchlayers: ")


def instead(api: str) -> str:
    """Returns advice, for error messages, on an argument that can't be differentiated."""
    if api in ("vjp", "jvp", "hvp"):  # they differentiate with respect to all their arguments
        return "bind it beforehand, with functools.partial or a lambda"
    return "leave it out of argnums"


def untracked_capture(where: str, what: str) -> str:
    """Returns the message for a tensor from outside that a branch or loop body used undetected."""
    return (
        f"torchlayers: {where}: a branch or loop body used {what} from outside it in a way that "
        f"torchlayers can't detect (in a C++ extension, or captured by a Function).{location()} "
        "Pass it as an operand."
    )


# How torch's errors begin if something accesses the memory of a tensor inside a transform.
_NO_MEMORY = (
    "Cannot access data pointer of Tensor",
    "Cannot access storage of TensorWrapper",
    "Cannot access storage of a tensor batched by torchlayers.vmap",
    "The tensor has a non-zero number of elements, but its data is not allocated yet",
)


def explain(error: RuntimeError, layer: str, samples: Any) -> None:
    """Raises an error with advice, if a function needed a tensor with memory and got a wrapper.

    Args:
        error: the error that the function raised.
        layer: the layer's name on the stack.
        samples: a vmap's batch size, or None for another layer.
    """
    text = str(error)
    if text.startswith(_NO_MEMORY):
        contents = "a wrapper around its value" if samples is None else f"{samples} samples at once"
        asking = "untyped_storage()" if "storage of" in text else "tolist(), numpy() or data_ptr()"
        advice = (
            f"can't give {asking} access to memory: inside it a tensor is {contents} "
            f"({text.splitlines()[0]}). Return the tensor, and convert it outside."
        )
    elif text.startswith("accessing `data` under vmap transform is not allowed"):
        advice = f"has no `data` of its own ({text}). Use x.detach()."
    elif text.startswith("backward() called inside a functorch transform"):
        advice = (
            "can't run backward(), which adds to the .grad of tensors that the transform does not "
            f"track ({text}). Use torch.autograd.grad(loss, inputs), or torchlayers.grad."
        )
    elif text.startswith("NYI: querying is_contiguous inside of vmap"):
        advice = (
            f"can't tell the memory format of a single sample ({text}). Check it before vmap, or "
            "call contiguous()."
        )
    else:
        return
    raise TransformError(f"torchlayers: {layer} {advice}{location_of(error)}") from error
