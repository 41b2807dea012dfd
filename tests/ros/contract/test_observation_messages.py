"""The messages of an observation."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import EXECUTED_ACTION, ImageSource, load_contract
from ttm_policy.messages import (
    image_to_frame,
    input_types,
    ns_to_stamp,
    observation_messages,
    read_vector,
)


def test_every_input_has_a_message_of_its_topic_from_which_its_values_are_read(
    observations: list[dict[str, np.ndarray]],
) -> None:
    contract = load_contract()
    did = np.arange(SPEC.action_size, dtype=np.float32)
    values = {**observations[0], EXECUTED_ACTION: did}
    messages = observation_messages(contract, values, ns_to_stamp(5))
    assert {topic: type(message) for topic, message in messages.items()} == input_types(contract)
    for source in contract.inputs:
        message = messages[source.topic]
        if isinstance(source, ImageSource):
            found = image_to_frame(message, source, SPEC.camera(source.name))
        else:
            found = read_vector(message, source)
        np.testing.assert_array_equal(found, values[source.name])
        assert message.header.stamp == ns_to_stamp(5)
