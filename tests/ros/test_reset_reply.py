"""The answer of `~/reset_memory`, from which a simulator learns what the policy did."""

from __future__ import annotations

import pytest
from std_srvs.srv import Trigger

from ttm_policy.messages import ResetReply, read_reset_reply


@pytest.mark.parametrize("instruction", ["pick up the red can", 'say "hé"\nand: {stop}', ""])
def test_a_reply_survives_the_service(instruction: str) -> None:
    reply = ResetReply(instruction, tick=0)
    response = Trigger.Response(success=True, message=reply.to_json())
    assert read_reset_reply(response) == reply


@pytest.mark.parametrize(
    ("success", "message"),
    [
        (False, ResetReply("pick up the red can").to_json()),
        (True, "memory is empty"),
        (True, "[]"),
        (True, '{"instruction": "pick up the red can"}'),
        (True, '{"instruction": "pick up the red can", "tick": null}'),
    ],
)
def test_refusals_and_other_answers_confirm_nothing(success: bool, message: str) -> None:
    assert read_reset_reply(Trigger.Response(success=success, message=message)) is None
