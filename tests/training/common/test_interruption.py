from __future__ import annotations

import os
import signal

import pytest

from ttm.training.runtime import Interruption


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_noted_and_the_second_acts_as_always(
    number: signal.Signals, code: int
) -> None:
    before = signal.getsignal(number)
    with Interruption() as interruption:
        assert interruption.exit_code == 0
        os.kill(os.getpid(), number)
        assert interruption.signal_number == number
        assert interruption.exit_code == code
        assert signal.getsignal(number) == before


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
