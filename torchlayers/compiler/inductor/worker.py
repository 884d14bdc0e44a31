"""The main function of a process that compiles graphs for another one (worker_process.py)."""

import os
import pickle
import queue
import signal
import struct
import threading
from typing import BinaryIO

from torchlayers.compiler.inductor import cache_directory, code_cache
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.inductor.compile_job import (
    Compiled,
    CompileJob,
    Failed,
    Reply,
    Unsuited,
    set_numerics,
)
from torchlayers.compiler.inductor.graph_description import NotDescribableError, build_graph
from torchlayers.core.private_names import lookup
from torchlayers.core.tracing_state import import_uninterrupted

_LENGTH = struct.Struct("<Q")


def main() -> None:
    """Replies to each job on stdin, on stdout. Ends when stdin is closed."""
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    requests = os.fdopen(0, "rb", closefd=False)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a print is not a reply

    def read_jobs() -> None:
        while (job := read_frame(requests)) is not None:
            jobs.put(job)
        _end()

    threading.Thread(target=read_jobs, daemon=True).start()
    import_uninterrupted("torch._inductor.compile_fx", "torch._inductor.lowering")
    while True:
        key, encoded = pickle.loads(jobs.get())
        write_frame(replies, pickle.dumps(run(key, encoded)))


def _end() -> None:
    """Ends this process, even if it is compiling, and the compilers that it has started."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def run(key: str, encoded: bytes) -> Reply:
    """Does a job, and stores its result on disk under the key."""
    try:
        job: CompileJob = pickle.loads(encoded)
    except Exception as error:  # an option of a class that can't be imported here
        return Unsuited(f"{type(error).__name__}: {error}")
    try:
        return _compile(key, job)
    except NotDescribableError as error:
        return Unsuited(str(error))
    except inductor.NoCompilerError as error:
        return Failed(str(error), is_no_compiler=True)
    except Exception as error:
        text = str(error).strip().splitlines()
        return Failed(
            f"{type(error).__name__}: {text[0] if text else ''}",
            no_cache=cache_directory.unusable_reason(error),
            is_disk_full=cache_directory.is_full(error),
        )


def _compile(key: str, job: CompileJob) -> Reply:
    config = lookup("torch._inductor.config")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = job.cache_directory
    set_numerics(job.numerics)
    changed = {name: value for name, value in job.config.items() if name in config._config}
    with config.patch(changed):
        code = inductor.lower_graph(build_graph(job.graph), job.threads, job.options)
    program = code.describe()
    if program is None:
        return Unsuited("its code is not called from C++")
    try:
        code_cache.store(job.cache_directory, key, program)
    except Exception as error:  # a constant in it can't be pickled
        return Unsuited(str(error))
    return Compiled(program)


def read_frame(stream: BinaryIO) -> bytes | None:
    """Reads what write_frame wrote, or None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None


def write_frame(stream: BinaryIO, data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()
