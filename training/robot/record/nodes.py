"""Which nodes `ttm record` starts, with their parameters."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

from ttm_policy.parameters import (
    PolicyParameters,
    RecorderParameters,
    TeleopParameters,
    WebParameters,
)


@dataclass(frozen=True)
class Nodes:
    """The parameters of the recorder, and of what a person drives by, None for what is not started."""

    recorder: RecorderParameters
    web: WebParameters | None
    teleop: TeleopParameters | None
    policy: PolicyParameters | None = None

    @property
    def beside_policy(self) -> bool:
        """Whether the person drives in the place of a policy."""
        return any(driver is not None and driver.policy for driver in (self.web, self.teleop))

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Return the name of each node -> its parameters.

        The recorder takes keys if there is a terminal that does not drive the robot.
        """
        keys = sys.stdin.isatty() and not (self.teleop and self.teleop.source == "keyboard")
        if not sys.stdin.isatty() and self.web is None:
            print("no terminal for keys: call ~/start and ~/stop of recorder_node", flush=True)
        drivers: dict[str, Any] = {"web_node": self.web, "teleop_node": self.teleop}
        drivers["policy_node"] = self.policy
        found = {name: asdict(given) for name, given in drivers.items() if given is not None}
        return {**found, "recorder_node": asdict(replace(self.recorder, keys=keys))}
