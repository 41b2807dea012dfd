"""The spec of a bag: from its contract, its first images, and what a spec file says."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from ttm.datasets.observations.spec_file import SpecFile, read_spec_file
from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm_policy.bags.bag_file import BagFile
from ttm_policy.contract.robot_contract import ActionSink, RobotContract


def spec_of_bag(
    bag: BagFile, contract: RobotContract, rate_hz: float, spec_file: str | None
) -> PolicySpec:
    """Return the spec of the episodes that bags of a contract become.

    Cameras have the size of their first image. Parts of the action are those of the spec file, or
    else one for each entry of the contract, with a value for each field; a `std_msgs/Bool` is binary.
    """
    given = SpecFile() if spec_file is None else read_spec_file(Path(spec_file))
    if given.rate_hz not in (None, rate_hz):
        raise UserError(
            f"{spec_file} says {given.rate_hz:g} Hz, but --rate-hz is {rate_hz:g}; give the same rate"
        )
    first = {topic: message for topic, _, message in bag.messages({t: {0} for t in bag.types})}
    labels = given.proprioception or {}
    vectors = tuple(
        ProprioceptionSpec(
            source.name, labels.get(source.name) or tuple(field.path for field in source.fields)
        )
        for source in contract.vectors
    )
    for topic in bag.types:
        if topic not in first and any(source.topic == topic for source in contract.images):
            raise UserError(
                f"{bag.path}: topic '{topic}' has no message; record it with the others"
            )
    cameras = tuple(
        CameraSpec(source.name, *_size(first[source.topic])) for source in contract.images
    )
    return PolicySpec(
        robot=contract.robot,
        cameras=cameras,
        proprioception=vectors,
        actions=given.actions or tuple(_part(sink) for sink in contract.actions),
        rate_hz=rate_hz,
    )


def _size(message: Any) -> tuple[int, int]:
    """Return the height and width of an image's message, compressed or not."""
    if hasattr(message, "height"):
        return int(message.height), int(message.width)
    with Image.open(io.BytesIO(bytes(message.data))) as image:
        return image.height, image.width


def _part(sink: ActionSink) -> ActionPart:
    kind: Literal["continuous", "binary"] = (
        "binary" if sink.type == "std_msgs/Bool" else "continuous"
    )
    return ActionPart(sink.name, len(sink.fields), "unknown", kind)
