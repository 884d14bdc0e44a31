"""Processes that are reused for many cases, one per rank; every rank runs a case's function.

    @case
    def a_sum_is_every_ranks(): ...

    test_over_ranks = over_ranks(__name__)

An exception on any rank fails the test with that rank's traceback. After a timeout the processes
are ended, and the next case gets new ones.
"""

import dataclasses
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SECONDS = 40
SECONDS_TO_START = 120


@dataclasses.dataclass
class _Rank:
    process: subprocess.Popen
    requests: int
    answers: int
    received: bytes = b""

    def send(self, request: list) -> None:
        os.write(self.requests, json.dumps(request).encode() + b"\n")

    def receive(self, deadline: float) -> str | None:
        """Returns the case's traceback, "" if it succeeded, or None after a timeout."""
        while b"\n" not in self.received:
            ready, _, _ = select.select([self.answers], [], [], max(deadline - time.time(), 0))
            if not ready:
                return None
            part = os.read(self.answers, 65536)
            if not part:
                return f"it ended with {self.process.wait()}"
            self.received += part
        line, _, self.received = self.received.partition(b"\n")
        return json.loads(line)


class Ranks:
    """Processes of a gloo process group, whose collectives time out after `timeout` seconds."""

    def __init__(self, size: int, timeout: float = 20, **environment: str):
        self.size = size
        self._timeout = timeout
        self._environment = environment
        self._ranks: list[_Rank] = []

    def answers(self, module: str, name: str, *args, seconds: float = SECONDS) -> list[str | None]:
        """Returns each rank's traceback, "" if it succeeded, or None if it has not answered."""
        if not self._ranks:
            self._start()
        for rank in self._ranks:
            rank.send([module, name, *args])
        deadline = time.time() + seconds
        return [rank.receive(deadline) for rank in self._ranks]

    def run(self, module: str, name: str, *args, seconds: float = SECONDS) -> None:
        answers = self.answers(module, name, *args, seconds=seconds)
        if any(
            answer != "" for answer in answers
        ):  # the ranks may wait for each other in different places
            self.close()
        failures = [
            f"rank {i}: {'no answer in time' if answer is None else answer}"
            for i, answer in enumerate(answers)
            if answer != ""
        ]
        assert not failures, "\n".join(failures)

    def close(self) -> None:
        for rank in self._ranks:
            rank.process.kill()
            rank.process.wait()
            os.close(rank.requests)
            os.close(rank.answers)
        self._ranks = []

    def _start(self) -> None:
        store = tempfile.mktemp()
        for i in range(self.size):
            theirs, requests = os.pipe()
            answers, to_us = os.pipe()
            arguments = [str(each) for each in (theirs, to_us, store, i, self.size, self._timeout)]
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.distributed.worker", *arguments],
                cwd=ROOT,
                pass_fds=(theirs, to_us),
                env={**os.environ, "OMP_NUM_THREADS": "1", **self._environment},
            )
            os.close(theirs)
            os.close(to_us)
            self._ranks.append(_Rank(process, requests, answers))
        deadline = time.time() + SECONDS_TO_START
        assert all(rank.receive(deadline) == "" for rank in self._ranks), "a rank has not started"


CASES: dict[str, list[str]] = {}


def case(function):
    """Marks a function as a case that all ranks run."""
    CASES.setdefault(function.__module__, []).append(function.__name__)
    return function


def over_ranks(module: str):
    """Returns a test that is parametrized over the module's cases."""
    import pytest

    @pytest.mark.parametrize("name", CASES[module])
    def test_over_ranks(ranks, name):
        ranks.run(module, name)

    return test_over_ranks
