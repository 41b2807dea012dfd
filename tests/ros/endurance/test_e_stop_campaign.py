"""The campaign of presses: the verdict on made-up ones, and its options."""

from __future__ import annotations

from typing import Any

import pytest
from e_stop_campaign import EStopCampaign, Measured, lines

from ttm.policy import UserError

GOOD: dict[str, Any] = {
    "driving_s": [0.003, 0.050],
    "asked_s": [0.004] * 19 + [0.013],
    "loading_s": [0.004] * 19 + [0.012],
    "prepared_s": 6.0,
    "silence_s": 1.1,
}


def _missed(**change: Any) -> list[str]:
    return [line.what for line in lines(Measured(**GOOD | change)) if line.holds is False]


def test_the_slowest_answer_while_asked_or_loading_and_the_longest_silence_have_bars() -> None:
    assert _missed() == []
    assert _missed(loading_s=[0.004] * 99 + [0.021]) == ["worst, ms"]
    assert _missed(asked_s=[0.004] * 99 + [0.021]) == ["worst, ms"]
    assert _missed(silence_s=4.5) == ["longest silence, s"]


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match="presses"):
        EStopCampaign(presses=0).check()
    with pytest.raises(UserError, match="seed"):
        EStopCampaign(seed=-1).check()
