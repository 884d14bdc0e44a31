"""Compiles graphs in other processes, while the program goes on.

A compiling process (inductor/worker.py) is sent a description of the graph and replies with a
description of the program that runs Inductor's code. Here, that takes some milliseconds: neither
Inductor nor a compiler runs in this process, and none of its locks is held. What can't be sent (a
graph with symbolic sizes, on a device, or with an operator that only this process knows) is
compiled on a thread of this process.

A compilation that nothing refers to any more, because its function is gone, is left out. When the
program ends, compiling processes end too, without anyone waiting for them.
"""

import atexit
import ctypes
import errno
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.inductor import cache_directory, code_cache, wrapper_program
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.inductor.compile_job import (
    Compiled,
    Failed,
    Reply,
    Unsuited,
    job_of,
    key_of,
)
from torchlayers.compiler.inductor.graph_description import NotDescribableError
from torchlayers.compiler.inductor.worker_process import WorkerDiedError, WorkerProcess

Run = Callable[[list[Tensor]], Sequence[Tensor]]

# Seconds after which threads, and processes, that have nothing to do end.
_IDLE = 60.0
# How often a graph is sent to a process that ends before it replies.
_TRIES = 2
# Seconds to wait, at exit, for threads whose work has been interrupted.
_AT_EXIT = 2.0


class BackgroundError(Exception):
    """An error of a compiling process, whose text it has."""


def describe_error(error: Exception) -> str:
    """``RuntimeError: no lowering``."""
    text = str(error).strip().splitlines()
    first = text[0] if text else ""
    return first if isinstance(error, BackgroundError) else f"{type(error).__name__}: {first}"


class Compilation:
    """A graph that is being compiled in the background.

    Attributes:
        seconds: how long that took.
        is_lost: whether the compilation was in flight when this process was forked from another.
    """

    def __init__(self, compile_here: Callable[[], Run]) -> None:
        self.compile_here = compile_here
        self.key, self.encoded = "", b""
        self.seconds = 0.0
        self.is_lost = False
        self._run: Run | None = None
        self._error: BaseException | None = None
        self._start = time.perf_counter()
        self._done = threading.Event()
        _in_flight.add(self)

    def is_done(self) -> bool:
        return self._run is not None or self._error is not None or self.is_lost

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is done, at most for these seconds; returns whether it is."""
        return self.is_done() or self._done.wait(timeout)

    def result(self) -> Run:
        """Returns the code, once that is there, or raises the error."""
        if self._run is None:
            assert self._error is not None
            raise self._error
        return self._run

    def finish(self, run: Run | None, error: BaseException | None = None) -> None:
        self.seconds = time.perf_counter() - self._start
        self._run, self._error = run, error
        self.encoded = b""
        _in_flight.discard(self)
        self._done.set()


def start(
    graph: GraphModule,
    threads: int,
    options: dict[str, Any] | None,
    compile_here: Callable[[], Run],
    only_here: bool = False,
) -> Compilation:
    """Starts compiling a graph; if the cache on disk has its code, that is there at once.

    Args:
        graph, threads, options: as for inductor.compile_graph.
        compile_here: compiles it in this process, if that is necessary.
        only_here: whether it is, because of collectives.
    """
    compilation = Compilation(compile_here)
    try:
        if only_here:
            raise NotDescribableError("the caller says so")
        cache_directory.check_writable()
        job = job_of(graph, threads, options)
        compilation.encoded = job.encoded()
    except NotDescribableError:
        _local.submit(compilation)
        return compilation
    except (OSError, cache_directory.NoCacheError) as error:
        compilation.finish(None, error)
        return compilation
    compilation.key = key_of(compilation.encoded)
    if (program := code_cache.load(job.cache_directory, compilation.key)) is not None:
        compilation.finish(program)
    else:
        _remote.submit(compilation)
    return compilation


class _Threads:
    """Threads that work on compilations, started when there are any."""

    def __init__(self, name: str, most: int, worker: "type[_Worker]") -> None:
        self._name, self._most, self._worker = name, most, worker
        self._changed = threading.Condition()
        self._waiting: deque[weakref.ref[Compilation]] = deque()
        self._idle = 0
        self.running: dict[threading.Thread, _Worker] = {}
        self._is_closed = False

    def submit(self, compilation: Compilation) -> None:
        with self._changed:
            self._waiting.append(weakref.ref(compilation))
            try:
                if self._idle < len(self._waiting) and len(self.running) < self._most:
                    self._start_thread()
            except RuntimeError as error:  # there are too many threads, or the program is ending
                if not self.running:
                    compilation.finish(None, error)
            self._changed.notify()

    def _start_thread(self) -> None:
        worker = self._worker()
        thread = threading.Thread(target=self._serve, args=(worker,), name=self._name, daemon=True)
        thread.start()  # it waits for the lock
        self.running[thread] = worker

    def _serve(self, worker: "_Worker") -> None:
        try:
            while (compilation := self._next()) is not None:
                reference = weakref.ref(compilation)
                work = worker.work_of(compilation)
                del compilation  # nothing here keeps a function alive
                try:
                    done = work()
                except Exception as error:
                    done = _failed(error)
                if (compilation := reference()) is not None:
                    done(compilation)
                compilation = None
        finally:
            worker.end()
            with self._changed:
                self.running.pop(threading.current_thread(), None)

    def _next(self) -> Compilation | None:
        """Waits for the next compilation whose function is alive; None if this thread may end."""
        with self._changed:
            while not self._is_closed:
                while self._waiting:
                    if (compilation := self._waiting.popleft()()) is not None:
                        return compilation
                self._idle += 1
                try:
                    is_notified = self._changed.wait(_IDLE)
                finally:
                    self._idle -= 1
                if not is_notified and not self._waiting:
                    break
            self.running.pop(threading.current_thread(), None)
            return None

    def close(self) -> None:
        """Ends the threads, and the processes that they have started."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()
            running = [*self.running.items()]
        for thread, worker in running:
            worker.interrupt(thread)
        for thread, _ in running:
            thread.join(_AT_EXIT)

    def forget(self) -> None:
        """Leaves everything to the process that this one was forked from."""
        for worker in self.running.values():
            worker.forget()


# Sets a compilation's result.
_Done = Callable[[Compilation], None]


class _Worker:
    """Works on one compilation at a time."""

    def work_of(self, compilation: Compilation) -> Callable[[], _Done]:
        raise NotImplementedError

    def interrupt(self, thread: threading.Thread) -> None:
        """Makes the work end early; called by another thread."""

    def end(self) -> None:
        """Ends the process, if there is one."""

    def forget(self) -> None:
        """Leaves the process to the parent of this one."""


class _Remote(_Worker):
    """Has compilations done by a process of its own."""

    def __init__(self) -> None:
        self.process: WorkerProcess | None = None
        self._is_interrupted = False

    def work_of(self, compilation: Compilation) -> Callable[[], _Done]:
        key, encoded = compilation.key, compilation.encoded
        return lambda: self._reply(key, encoded)

    def _reply(self, key: str, encoded: bytes) -> _Done:
        reply: Reply = Failed("it was not compiled")
        for _ in range(_TRIES):
            if self._is_interrupted:
                break
            try:
                self.process = self.process or WorkerProcess()
                reply = self.process.ask(key, encoded)
                break
            except WorkerDiedError as error:
                self.process = None
                reply = Failed(str(error))
            except OSError:  # there can't be one
                return _local.submit
        match reply:
            case Compiled(description):
                program = wrapper_program.build(description)
                return _local.submit if program is None else _finished(program)
            case Unsuited():
                return _local.submit
            case Failed():
                return _failed(_error_of(reply))

    def interrupt(self, thread: threading.Thread) -> None:
        self._is_interrupted = True
        if (process := self.process) is not None:
            process.kill()

    def end(self) -> None:
        if self.process is not None:
            self.process.close()

    def forget(self) -> None:
        if self.process is not None:
            self.process.forget()


def _finished(run: Run) -> _Done:
    return lambda compilation: compilation.finish(run)


def _failed(error: Exception) -> _Done:
    return lambda compilation: compilation.finish(None, error)


def _error_of(failed: Failed) -> Exception:
    if failed.is_no_compiler:
        return inductor.NoCompilerError(failed.error)
    if failed.no_cache is not None:
        return cache_directory.NoCacheError(failed.no_cache)
    error = BackgroundError(failed.error)
    if failed.is_disk_full:
        error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error


class _Local(_Worker):
    """Compiles on its thread."""

    def work_of(self, compilation: Compilation) -> Callable[[], _Done]:
        compile_here = compilation.compile_here
        return lambda: _finished(compile_here())

    def interrupt(self, thread: threading.Thread) -> None:
        # Python would end the thread where it next takes the lock of the interpreter, maybe inside
        # C++ code that can't be unwound.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
        )


# Inductor may be used by one thread at a time.
compiling = threading.Lock()

_in_flight: "weakref.WeakSet[Compilation]"
_remote: _Threads
_local: _Threads


def _begin() -> None:
    global _in_flight, _remote, _local
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    _in_flight = weakref.WeakSet()
    _remote = _Threads("torchlayers compiles elsewhere", max(1, min(4, processors // 2)), _Remote)
    # Inductor may be used by one thread at a time.
    _local = _Threads("torchlayers compiles", 1, _Local)


def _begin_in_fork() -> None:
    for compilation in [*_in_flight]:
        compilation.is_lost = True
    _remote.forget()
    if _local.running:  # a thread that this process lacks may hold these
        for lock in (compiling, *inductor.locks()):
            if not (hasattr(lock, "_is_owned") and lock._is_owned()):
                lock._at_fork_reinit()
    _begin()


def _end() -> None:
    _remote.close()
    _local.close()


def process_ids() -> list[int]:
    """The compiling processes of this one."""
    workers = [worker for worker in _remote.running.values() if isinstance(worker, _Remote)]
    return [worker.process.pid for worker in workers if worker.process is not None]


_begin()
atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_fork)
