"""The options of jacrev, jacfwd and hessian: how a derivative is computed, and not what it is.

They are keywords of each of the three. :func:`torchlayers.jacrev` documents them.
"""

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import TypedDict

from torchlayers.core.annotations import Randomness
from torchlayers.core.jax_names import refuse_keywords
from torchlayers.distributed.mesh import Check, Out
from torchlayers.transforms.batching_options import BatchingOptions
from torchlayers.transforms.chunking import ChunkSize
from torchlayers.transforms.sparse.assembly import Layout
from torchlayers.transforms.sparse.derivatives import Sparse

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

F = TypeVar("F", bound=Callable[..., Any])


class _SharedOptions(TypedDict, total=False):
    chunk_size: ChunkSize
    progress: bool
    mesh: "DeviceMesh | None"
    out: Out
    check: Check | bool
    sparse: Sparse | None
    layout: Layout


class JacobianOptions(_SharedOptions, total=False, closed=True):
    """The options of jacrev and hessian."""

    memory_budget: int | float | None


class ForwardOptions(_SharedOptions, total=False, closed=True):
    """The options of jacfwd, which saves no residuals that a fraction could be of."""

    memory_budget: int | None
    randomness: Randomness


class JacobianSettings(NamedTuple):
    """The options of one call, with the defaults of those that are not passed."""

    batching: BatchingOptions
    sparse: Sparse | None = None  # None for a dense derivative
    layout: Layout = "coo"
    randomness: Randomness = "error"


_DEFAULTS = {**BatchingOptions()._asdict(), **JacobianSettings(BatchingOptions())._asdict()}


def with_options(options: Any) -> Callable[[F], F]:
    """Puts the keys of a TypedDict, with their defaults, in a signature in place of ``**options``.

    The signature is what ``help`` shows, and what errors about unknown keywords list.
    """

    def decorate(func: F) -> F:
        signature = inspect.signature(func)
        shown = [p for p in signature.parameters.values() if p.kind != Parameter.VAR_KEYWORD]
        types = options.__annotations__
        shown += [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=default,
                annotation=getattr(types[name], "__forward_arg__", types[name]),
            )
            for name, default in _DEFAULTS.items()
            if name in types
        ]
        func.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return func

    return decorate


def read_options(transform: Callable[..., Any], options: Any) -> JacobianSettings:
    """The settings of a transform that was called with these options.

    Raises:
        TypeError: it has no option of that name.
    """
    batching = {name: options[name] for name in BatchingOptions._fields if name in options}
    others = {name: value for name, value in options.items() if name not in batching}
    settings = JacobianSettings(
        BatchingOptions(**batching),
        others.pop("sparse", None),
        others.pop("layout", "coo"),
        others.pop("randomness", "error"),
    )
    if others:
        refuse_keywords(transform, others)
    return settings._replace(sparse=None) if settings.sparse is False else settings
