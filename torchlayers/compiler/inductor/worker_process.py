"""Starts and ends the processes that compile graphs (worker.py), and talks to them."""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys

from torchlayers.compiler.inductor.compile_job import Reply
from torchlayers.compiler.inductor.worker import read_frame, write_frame

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from torchlayers.compiler.inductor import worker; worker.main()"
)


class WorkerDiedError(Exception):
    """The process ended before it replied."""


class WorkerProcess:
    """A new Python process, which imports this package and nothing of the program.

    It is not forked, because forks of a process with threads can deadlock, and it runs no main
    module, so programs need no ``if __name__ == "__main__"``. It is in a session of its own, where
    Ctrl-C in a terminal does not reach it, and ends when this process does.
    """

    def __init__(self) -> None:
        path = [entry for entry in sys.path if isinstance(entry, str)]
        environment = {k: v for k, v in os.environ.items() if k != "TORCHLAYERS_TRACE"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, key: str, encoded: bytes) -> Reply:
        """Sends an encoded job and its key, and waits for the reply.

        Raises:
            WorkerDiedError: the process ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            write_frame(self._process.stdin, pickle.dumps((key, encoded)))  # type: ignore[arg-type]
            reply = read_frame(self._process.stdout)  # type: ignore[arg-type]
        except OSError:  # a broken pipe
            reply = None
        if reply is None:
            raise WorkerDiedError(self._ending())
        return pickle.loads(reply)  # type: ignore[no-any-return]

    def _ending(self) -> str:
        self.close()
        code = self._process.returncode
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"the compiling process ended with {how}"

    def close(self) -> None:
        """Ends the process; to be called by the thread that asks it."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not sent
                    pipe.close()

    def kill(self) -> None:
        """Ends the process and the compilers that it has started; any thread may call it."""
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Leaves the process to its parent; to be called in a fork of that."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    os.close(pipe.fileno())
        self._process.returncode = 0  # or Popen's destructor would warn
