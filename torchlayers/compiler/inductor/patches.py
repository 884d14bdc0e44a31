"""All that is replaced in Inductor while this package compiles a graph, and what each buys.

Inductor has no public way to these, so functions are replaced, for the compiling thread alone. A
torch in which one has moved is used as it is: slower, which the logger says once.

| in torch._inductor | instead | CPU time without it, in multiples |
|---|---|---|
| async_compile.AsyncCompile.cpp_pybinding | kernels share files | first call: 1.8 |
| sizevars.stride_at, simplify_index_in_vec_range | no simplification | lowering: 1.1 to 2.3 |
| scheduler.SchedulerNode.codegen | no code for empty tails | lowering: 1.04 to 1.3 |
| dtype_propagation.DtypePropagationOpsHandler.__init__ | filled once | lowering: 1.1 |
| two functions of codegen.cpp (hyperbolic.py) | a quotient | calls: 1.4 |

Measured on 30 November 2026 with small workloads (per-sample gradients of a transformer and a CNN,
a network's Laplacian), on a machine that other work shared, torch 2.13.
benchmarks/inductor_patches.py measures whole first calls, and calls. A custom operator with a
lowering of the same quotient needs no replacement, but has no fused multiply-adds: the Laplacian
takes 1.1 times as long.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torchlayers.compiler.inductor import hyperbolic, kernels, shortcuts
from torchlayers.core.logger import logger
from torchlayers.core.private_names import lookup
from torchlayers.core.tracing_state import patched

_MISSING = object()
# Held while functions of Inductor are replaced.
patching = threading.RLock()


class Patch(NamedTuple):
    """A function to replace, by ``make(function)``.

    Attributes:
        loss: what is slower without that.
        needs: other private names that the replacement needs.
    """

    target: str
    make: Callable[[Any], Callable[..., Any]]
    loss: str
    needs: tuple[str, ...] = ()


def patches(sources: list[kernels.Source]) -> list[Patch]:
    """The patches; ``sources`` takes up the kernels to be compiled together."""
    compiling = "compiling takes longer"
    return [
        Patch("torch._inductor.async_compile.AsyncCompile.cpp_pybinding",
              kernels.collect_in(sources), compiling, kernels.NEEDED),
        Patch("torch._inductor.sizevars.stride_at", shortcuts.stride_at, compiling),
        Patch("torch._inductor.sizevars.simplify_index_in_vec_range",
              shortcuts.simplify, compiling),
        Patch("torch._inductor.scheduler.SchedulerNode.codegen",
              shortcuts.skip_empty_tails, compiling, shortcuts.NEEDED_FOR_TAILS),
        Patch("torch._inductor.dtype_propagation.DtypePropagationOpsHandler.__init__",
              shortcuts.fill_once, compiling, shortcuts.NEEDED_FOR_DTYPES),
        *(Patch(target, make, "the hyperbolic tangent takes longer")
          for target, make in hyperbolic.REPLACED.items()),
    ]  # fmt: skip


@contextlib.contextmanager
def patched_inductor() -> Iterator[None]:
    """Inside, Inductor compiles with the patches on this thread; kernels are compiled at exit."""
    import torch.compiler.config as compiler

    # A separate tag in Inductor's disk cache, so that torch.compile does not pick up this code.
    settings: Any = compiler
    tag = {"cache_key_tag": f"{settings.cache_key_tag} torchlayers' functions"}
    sources: list[kernels.Source] = []
    with patching, patched(settings, tag), contextlib.ExitStack() as stack:
        for patch in patches(sources):
            stack.enter_context(_replaced(patch))
        yield
        kernels.compile_together(sources)


@contextlib.contextmanager
def _replaced(patch: Patch) -> Iterator[None]:
    missing = [path for path in patch.needs if lookup(path, _MISSING) is _MISSING]
    if not is_there(patch.target):
        missing.insert(0, patch.target)
    if missing:
        _log_missing(missing[0], patch.loss)
        yield
        return
    path, _, name = patch.target.rpartition(".")
    owner, original = lookup(path), lookup(patch.target)
    thread, replacement = threading.get_ident(), patch.make(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_here = threading.get_ident() == thread
        return (replacement if is_here else original)(*args, **kwargs)

    before = vars(owner)[name]
    setattr(owner, name, staticmethod(call) if isinstance(before, staticmethod) else call)
    try:
        yield
    finally:
        setattr(owner, name, before)


def is_there(target: str) -> bool:
    """Whether this torch has the function, in the class or module itself."""
    owner, _, name = target.rpartition(".")
    return lookup(target, _MISSING) is not _MISSING and name in vars(lookup(owner))


@functools.cache
def _log_missing(target: str, loss: str) -> None:
    logger.info("compile: this torch has no %s, so %s", target, loss)
