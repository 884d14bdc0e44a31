"""Fewer garbage collections while many objects are created."""

import gc
import os
import threading

import pytest

from torchlayers.core.garbage_collection import gc_disabled, gc_of_young_objects


@pytest.fixture
def found():
    thresholds = gc.get_threshold()
    yield thresholds
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("was_on", [True, False])
def test_collection_is_off_inside_and_as_before_afterwards(was_on):
    (gc.enable if was_on else gc.disable)()
    try:
        with gc_disabled():
            assert not gc.isenabled()
        assert gc.isenabled() is was_on
    finally:
        gc.enable()


def test_new_garbage_is_collected(found):
    gone = []
    with gc_of_young_objects():
        assert gc.get_threshold()[0] == 10 * found[0]
        gc.callbacks.append(lambda phase, info: gone.append(info["generation"]))
        try:
            kept = [[i] for i in range(50 * found[0])]
        finally:
            gc.callbacks.pop()
    assert kept
    assert 0 in gone
    assert 2 not in gone


def test_thresholds_return_after_an_error(found):
    with pytest.raises(ZeroDivisionError), gc_of_young_objects():
        _ = 1 / 0
    assert gc.get_threshold() == found


def test_the_last_of_several_threads_restores_the_thresholds(found):
    entered, may_leave = threading.Event(), threading.Event()

    def other():
        with gc_of_young_objects():
            entered.set()
            may_leave.wait(30)

    thread = threading.Thread(target=other)
    with gc_of_young_objects():
        thread.start()
        assert entered.wait(30)
    assert gc.get_threshold() != found
    may_leave.set()
    thread.join()
    assert gc.get_threshold() == found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_the_thresholds_back(found):
    with gc_of_young_objects():
        child = os.fork()
        if child == 0:
            os._exit(gc.get_threshold() != found)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
