"""Changes of the process's state that several threads share."""

import os
import threading

import pytest

from torchlayers.core.shared_change import SharedChange


class Log:
    def __init__(self):
        self.entries = []
        self.change = SharedChange(self.make)

    def make(self):
        self.entries.append("made")
        return lambda: self.entries.append("undone")


def test_nested_changes_are_made_once():
    log = Log()
    with log.change.made(), log.change.made():
        assert log.entries == ["made"]
    assert log.entries == ["made", "undone"]
    with log.change.made():
        assert log.entries == ["made", "undone", "made"]


def test_the_last_thread_to_leave_undoes_the_change():
    log, entered, may_leave = Log(), threading.Event(), threading.Event()

    def other():
        with log.change.made():
            entered.set()
            may_leave.wait(60)

    thread = threading.Thread(target=other)
    with log.change.made():
        thread.start()
        assert entered.wait(60)
    assert log.entries == ["made"]
    may_leave.set()
    thread.join()
    assert log.entries == ["made", "undone"]


def test_an_error_undoes_the_change():
    log = Log()
    with pytest.raises(ZeroDivisionError), log.change.made():
        _ = 1 / 0
    assert log.entries == ["made", "undone"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_undoes_the_changes_of_threads_that_it_lacks():
    log = Log()
    with log.change.made():
        child = os.fork()
        if child == 0:
            os._exit(log.entries != ["made", "undone"])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
