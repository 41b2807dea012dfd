"""The spec of a bag: from its contract, its first images, and what a spec file says."""

from __future__ import annotations

from pathlib import Path

from ttm.datasets.observations.spec_file import SpecFile, read_spec_file
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.bags.bag_file import BagFile
from ttm_policy.contract.robot_contract import RobotContract
from ttm_policy.recording.spec import require_rate, spec_of_contract
from ttm_policy.recording.tick_values import message_image_size


def spec_of_bag(
    bag: BagFile, contract: RobotContract, rate_hz: float, spec_file: str | None
) -> PolicySpec:
    """Return the spec of the episodes that bags of a contract become, at the control rate.

    Without a spec file, it is that of the bag if it carries one. Otherwise,
    cameras have the size of their first image. What a spec file says of robot and cameras must be what
    the contract says, and images are taken as they are. Parts of the action are those of the spec file, or
    else one for each entry of the contract, with a value for each field; a `std_msgs/Bool` is binary.
    """
    if spec_file is None and bag.spec is not None:
        require_rate(bag.spec.rate_hz, rate_hz, str(bag.path))
        return bag.spec
    given = SpecFile() if spec_file is None else read_spec_file(Path(spec_file))
    require_rate(given.rate_hz, rate_hz, str(spec_file))
    _require_fit(given, contract, spec_file)
    first = {topic: message for topic, _, message in bag.messages({t: {0} for t in bag.types})}
    for source in contract.images:
        if source.topic not in first:
            raise UserError(
                f"{bag.path}: topic '{source.topic}' has no message; record it with the others"
            )
    sizes = {source.name: message_image_size(first[source.topic]) for source in contract.images}
    return spec_of_contract(contract, given, rate_hz, sizes)


def _require_fit(given: SpecFile, contract: RobotContract, spec_file: str | None) -> None:
    """Raise `UserError` if a spec file says of robot or cameras what a bag is not converted to."""
    if given.robot not in (None, contract.robot):
        raise UserError(
            f"{spec_file} is for the robot '{given.robot}', but the contract for '{contract.robot}'; "
            "give the same name in both"
        )
    names = [source.name for source in contract.images]
    if given.cameras is not None and set(given.cameras) != set(names):
        raise UserError(
            f"{spec_file} has the cameras {', '.join(given.cameras) or 'none'}, but the contract "
            f"{', '.join(names) or 'none'}; give the same in both"
        )
    for name, stored in (given.cameras or {}).items():
        if stored.orientation in ("upside-down", "rotated") or stored.colours != "rgb":
            raise UserError(
                f"{spec_file}: camera {name} is {stored.orientation or 'upright'} and {stored.colours}, but "
                "images of bags are taken as their messages say; turn them in the camera's driver, or "
                "give this spec to ttm train"
            )
