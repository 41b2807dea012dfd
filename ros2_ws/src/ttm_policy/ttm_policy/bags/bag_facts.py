"""What a bag says of its episode beside its messages, in the custom data of its `metadata.yaml`.

Bags that were recorded say nothing. Other programs, such as `ros2 bag`, take no notice of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from ttm.policy.checks import require_choice, require_valid_fields
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

Split = Literal["train", "valid"]

SPEC, EPISODE = "ttm_spec", "ttm_episode"
"""The names in the custom data: the `PolicySpec`, and the JSON of `BagFacts`."""


@dataclass(frozen=True)
class BagFacts:
    """Facts about the episode in a bag."""

    rate_hz: float
    """The control rate."""
    first_tick_ns: int
    """When the first tick begins. Others follow at the rate."""
    late_ns: int = 0
    """How much later the stamps are than the capture times, since ROS takes 0 for a missing clock."""
    task: str = ""
    success: bool | None = None
    seed: int | None = None
    split: Split | None = None
    """The mask that names the episode."""

    def __post_init__(self) -> None:
        """Raise `UserError` or `TypeError` for values that tell no tick, and for another mask."""
        if not 0 < self.rate_hz < math.inf:
            raise UserError(f"rate_hz is {self.rate_hz}; give a number above 0")
        require_valid_fields(self, {"first_tick_ns": 0, "late_ns": 0})
        if self.split is not None:
            require_choice("split", self.split, get_args(Split))


def custom_data(facts: BagFacts, spec: PolicySpec | None) -> dict[str, str]:
    """Return facts and spec as the custom data of a bag."""
    data = {EPISODE: json.dumps(asdict(facts), ensure_ascii=False)}
    return data if spec is None else data | {SPEC: spec.to_json()}


def read_custom_data(
    custom: Mapping[str, str] | None, path: Path
) -> tuple[BagFacts | None, PolicySpec | None]:
    """Return the facts and the spec that the custom data of a bag hold; None for what they lack.

    Raises `UserError` with the bag's path if they are damaged.
    """
    custom = custom or {}
    try:
        facts = BagFacts(**json.loads(custom[EPISODE])) if EPISODE in custom else None
        spec = PolicySpec.from_json(custom[SPEC]) if SPEC in custom else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path}: {EPISODE} or {SPEC} in the custom_data of metadata.yaml is damaged ({error}); "
            "copy the bag again, or delete both to do without"
        ) from error
    return facts, spec
