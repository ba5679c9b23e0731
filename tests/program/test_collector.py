"""The pause of Python's garbage collector while a program is made."""

from __future__ import annotations

import gc

import pytest

from alpaviz.program.collector import paused_collector


def test_the_collector_is_off_inside() -> None:
    with paused_collector():
        assert not gc.isenabled()


def test_the_collector_is_on_again_after_a_failure() -> None:
    with pytest.raises(ValueError, match="step"), paused_collector():
        raise ValueError("step")
    assert gc.isenabled()


def test_a_collector_that_the_user_turned_off_stays_off() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
