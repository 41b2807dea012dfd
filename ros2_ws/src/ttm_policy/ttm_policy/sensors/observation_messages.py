"""The messages of one observation, as the topics of a contract carry them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time

from ttm_policy.contract.conversions import MESSAGE_TYPES, frame_to_image, write_vector
from ttm_policy.contract.robot_contract import ImageSource, RobotContract, VectorSource

Source = ImageSource | VectorSource


def _name_frame(message: Any, source: Source) -> None:
    message.header.frame_id = source.frame_id or message.header.frame_id


def input_types(contract: RobotContract) -> dict[str, Any]:
    """Return the message class of each input topic."""
    return {source.topic: MESSAGE_TYPES[source.type] for source in contract.inputs}


def observation_messages(
    contract: RobotContract,
    values: Mapping[str, npt.NDArray[Any]],
    stamp: Time,
    *,
    complete: Callable[[Any, Source], None] = _name_frame,
) -> dict[str, Any]:
    """Return the message of each topic, all with one stamp.

    values: for each input of the contract, (H, W, 3) uint8 or (K,) float32. Inputs of one topic share
    its message. complete: fills in what the contract says nothing about; by default the frame that the
    contract asks for.
    """
    messages: dict[str, Any] = {}
    for source in contract.inputs:
        if isinstance(source, ImageSource):
            message = frame_to_image(np.asarray(values[source.name]), source, stamp)
            complete(message, source)
        else:
            message = messages.get(source.topic) or MESSAGE_TYPES[source.type]()
            complete(message, source)
            message.header.stamp = stamp
            write_vector(message, source, values[source.name])
        messages[source.topic] = message
    return messages
