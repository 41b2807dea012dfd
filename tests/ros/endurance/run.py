"""Endurance tests: campaigns of minutes to hours against running nodes, each with bars and an exit code.

    python tests/ros/endurance/run.py abuse --presses 3
    python tests/ros/endurance/run.py faults --help

The exit code is 1 if a bar is missed. Run them while nothing else runs. A campaign is a dataclass of options
with a method `run` that returns the exit code, and a line in `CAMPAIGNS`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / name) for name in ("support", "web"))

CAMPAIGNS = {
    "abuse": "abuse:AbuseCampaign",
    "e-stop": "e_stop_campaign:EStopCampaign",
    "faults": "fault_campaign:FaultCampaign",
    "record": "recorder_campaign:RecorderCampaign",
    "respawn": "respawn_campaign:RespawnCampaign",
}
"""Name -> "module:class"; the module is imported when its campaign is chosen."""


def main(words: Sequence[str]) -> int:
    """Run the campaign that the first word names, and return the exit code; 2 for wrong options."""
    if not words or words[0] not in CAMPAIGNS:
        print(f"{__doc__}\nCampaigns: {', '.join(CAMPAIGNS)}")
        return 0 if words in (["-h"], ["--help"]) else 2
    import rclpy
    import tyro
    from rclpy.signals import SignalHandlerOptions

    from ttm.policy.errors import UserError
    from ttm.training.robot.processes import simulation_environment

    module, _, name = CAMPAIGNS[words[0]].partition(":")
    kind = getattr(import_module(module), name)
    campaign = tyro.cli(kind, args=list(words[1:]), prog=f"run.py {words[0]}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all ends in order
    try:
        campaign.check()
        os.environ |= simulation_environment()
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        return int(campaign.run())
    except (UserError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
