"""The spec of what is recorded: from the contract, and what the user gives besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ttm.datasets.episode_dataset import open_dataset
from ttm.datasets.observations.spec_file import SpecFile, read_spec_file
from ttm.policy.checkpoint_header import read_checkpoint_spec
from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm_policy.contract.robot_contract import ActionSink, RobotContract

Sizes = Mapping[str, tuple[int, int]]
"""Camera -> height and width of its images."""


@dataclass(frozen=True)
class GivenSpec:
    """What is known before the first image came: all, or the parts of a spec file."""

    whole: PolicySpec | None
    file: SpecFile
    rate_hz: float

    def complete(self, contract: RobotContract, sizes: Sizes) -> PolicySpec:
        """Return the spec of episodes with cameras of these sizes. Raises `UserError` if it does not fit."""
        spec = self.whole or spec_of_contract(contract, self.file, self.rate_hz, sizes)
        try:
            contract.check(spec, whose="the spec")
        except UserError as error:
            if self.whole or self.file.actions:
                raise
            raise UserError(
                f"{error}. Without the parameter spec, each field of an action is a value of its own: if one "
                "value goes to several joints, such as two fingers, give a spec, a checkpoint or episodes"
            ) from error
        return spec


def read_given_spec(source: str, contract: RobotContract, rate_hz: float) -> GivenSpec:
    """Read what the parameter `spec` names: a checkpoint, a YAML file, episodes, or nothing.

    rate_hz: the control rate; 0 takes that of the contract, or else of the source. Raises `UserError` if
    none is known, or the source has another one.
    """
    rate_hz = rate_hz or contract.rate_hz or 0.0
    whole, file = None, SpecFile()
    if source == SHIPPED or source.endswith(".safetensors"):
        whole = read_checkpoint_spec(checkpoint_path(source))
    elif source.endswith((".yaml", ".yml")):
        file = read_spec_file(Path(source))
    elif source:
        whole = open_dataset(source).spec
    known = file.rate_hz if whole is None else whole.rate_hz
    if known is None and not rate_hz:
        raise UserError(
            "no control rate is known; set rate_hz, write it into the contract, or give a spec that has one"
        )
    require_rate(known, rate_hz or known, source)
    return GivenSpec(whole, file, rate_hz or known or 0.0)


def require_rate(known: float | None, rate_hz: float | None, source: str) -> None:
    """Raise `UserError` if `source` says another rate, in Hz, than the one that is used; None says none."""
    if known not in (None, rate_hz):
        raise UserError(
            f"{source} says {known:g} Hz, but the rate is {rate_hz:g}; give the same rate"
        )


def spec_of_contract(
    contract: RobotContract, given: SpecFile, rate_hz: float, sizes: Sizes
) -> PolicySpec:
    """Return a spec with the names of a contract.

    Parts of the action are those of the spec file, or else one for each entry of the contract, with a
    value for each field; a `std_msgs/Bool` is binary.
    """
    labels = given.proprioception or {}
    return PolicySpec(
        robot=contract.robot,
        cameras=tuple(CameraSpec(source.name, *sizes[source.name]) for source in contract.images),
        proprioception=tuple(
            ProprioceptionSpec(
                source.name, labels.get(source.name) or tuple(field.path for field in source.fields)
            )
            for source in contract.vectors
        ),
        actions=given.actions or tuple(_part(sink) for sink in contract.actions),
        rate_hz=rate_hz,
    )


def _part(sink: ActionSink) -> ActionPart:
    kind: Literal["continuous", "binary"] = (
        "binary" if sink.type == "std_msgs/Bool" else "continuous"
    )
    return ActionPart(sink.name, len(sink.fields), "unknown", kind)
