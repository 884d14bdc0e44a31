"""The peers of a workload: which are installed, whether they agree, and their first calls."""

import contextlib
import importlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
import torch.func
from torch._dynamo.exc import TorchDynamoException
from torch.utils import _pytree as pytree

import torchlayers
from benchmarks.chains import FUNC, OURS, RAW
from benchmarks.timing import Work
from benchmarks.workloads import torch_operators
from benchmarks.workloads.workload import Workload

COMPILED, JIT, EAGER = f"{FUNC} compiled", "JAX jit", "JAX eager"
RAW_COMPILED, OURS_COMPILED = f"{RAW} compiled", f"{OURS} compiled"
IN_BACKGROUND = f"{OURS_COMPILED} in the background"
TOLERANCE = 1e-4  # of a result's largest entry; float32 rounds by 6e-8, and derivatives add to it


@dataclass(frozen=True)
class Failure:
    """Why a peer has no timing: it "refused" the workload, or its result is "wrong"."""

    kind: str
    reason: str


@dataclass
class Ready:
    """A workload's working peers, the times of their first calls, and why others are missing."""

    works: dict[str, Work] = field(default_factory=dict)
    first_calls: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def prepare(workload: Workload, left_out: Iterable[str] = ()) -> Ready:
    """Calls each peer twice: the first call is timed, the result of the second compared.

    Raises:
        AssertionError: a peer's result is not torch.func's (or, where that refuses the workload,
            that of the next peer). For torch.compile, which gets torch.func's own program and the
            one by hand, this is recorded as a failure instead.
    """
    ready, expected, reference = Ready(), None, FUNC
    for name, make in _makers(workload).items():
        if name in left_out:
            continue
        start = time.perf_counter()
        try:
            work = make()
            work()
            seconds = time.perf_counter() - start
            result = work()  # like the timed calls, with the state that the first call left
            if expected is None:
                expected, reference = result, name
            check_same(f"{workload}: {name}", result, expected, reference)
        except ImportError as error:
            ready.missing[name] = str(error)
        except (TorchDynamoException, RuntimeError) as error:
            if name in (RAW, OURS, OURS_COMPILED):
                raise
            ready.failures[name] = Failure("refused", f"{workload}: {name}: {_reason(error)}")
        except AssertionError as error:
            if name not in (COMPILED, RAW_COMPILED):
                raise
            ready.failures[name] = Failure("wrong", str(error))
        else:
            ready.works[name], ready.first_calls[name] = work, seconds
    return ready


def time_background(workload: Workload, ready: Ready) -> None:
    """Times the first call that does not wait for Inductor; nothing may be in its cache."""
    function = torchlayers.compile(workload.program(torchlayers, torch_operators), wait=False)
    start = time.perf_counter()
    function(*workload.arguments)
    ready.first_calls[IN_BACKGROUND] = time.perf_counter() - start
    function.wait()  # the compiling process would disturb the next timings


def warm_up_compiler() -> None:
    """Does Inductor's one-time setup; if it fails, each workload reports the error."""
    with contextlib.suppress(TorchDynamoException):
        torch.compile(torch.sin)(torch.ones(64))


def check_same(what: str, result: Any, expected: Any, reference: str = FUNC) -> None:
    """Raises AssertionError if a tensor differs from the reference's by more than rounding."""
    ours, theirs = _tensors(result), _tensors(expected)
    if [tensor.shape for tensor in ours] != [tensor.shape for tensor in theirs]:
        raise AssertionError(f"{what} returns other shapes than {reference}.")
    for actual, wanted in zip(ours, theirs, strict=True):
        apart, largest = (actual - wanted).abs().max(), wanted.abs().max()
        if not apart <= TOLERANCE * largest:  # so that nan fails too
            times = f"{apart / largest:.1e}"
            raise AssertionError(
                f"{what} differs from {reference} by {times} of the largest entry."
            )


def _makers(workload: Workload) -> dict[str, Callable[[], Work]]:
    """Functions that make each peer's work; torch.func is first, because it is the reference."""
    program, by_hand, arguments = workload.program, workload.by_hand, workload.arguments

    def of(function: Callable[..., Any]) -> Work:
        return lambda: function(*arguments)

    raw: dict[str, Callable[[], Work]] = {}
    raw_compiled: dict[str, Callable[[], Work]] = {}
    if by_hand is not None:
        raw[RAW] = lambda: of(by_hand)
        raw_compiled[RAW_COMPILED] = lambda: compiled_by_hand(workload, by_hand)
    return {
        FUNC: lambda: of(program(torch.func, torch_operators)),
        **raw,
        COMPILED: lambda: compiled_by_torch(workload),
        **raw_compiled,
        JIT: lambda: jax_work(workload, compiled=True),
        EAGER: lambda: jax_work(workload, compiled=False),
        **workload.specialists,
        OURS: lambda: of(program(torchlayers, torch_operators)),
        OURS_COMPILED: lambda: of(
            torchlayers.compile(program(torchlayers, torch_operators), wait=True)
        ),
    }


def compiled_by_torch(workload: Workload) -> Work:
    """torch.func's program, compiled by torch.compile."""
    return _compiled(workload.program(torch.func, torch_operators), workload)


def compiled_by_hand(workload: Workload, by_hand: Callable[..., Any]) -> Work:
    """The hand-written program, compiled by torch.compile, which traces torch.autograd.grad if the
    setting says so (and raises an error in versions of torch without the setting)."""
    work = _compiled(by_hand, workload)
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        return work

    def followed() -> Any:
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            return work()

    followed()  # the setting is read during compilation, and its context would take time itself
    return work


def _compiled(function: Callable[..., Any], workload: Workload) -> Work:
    """The function compiled as a single graph."""
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False)
    return lambda: compiled(*workload.arguments)


def jax_work(workload: Workload, compiled: bool) -> Work:
    jax = importlib.import_module("jax")
    operators = importlib.import_module("benchmarks.workloads.jax_operators")
    arguments = pytree.tree_map(
        lambda tensor: jax.numpy.asarray(tensor.cpu().numpy()), workload.arguments
    )
    function = workload.program(jax, operators)
    if compiled:
        function = jax.jit(function)
    return lambda: jax.block_until_ready(function(*arguments))


def _tensors(result: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    return [
        leaf.detach().cpu()
        if isinstance(leaf, torch.Tensor)
        else torch.from_numpy(numpy.array(leaf))
        for leaf in leaves
    ]


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
