"""A person drives and records by a web page, within the limits of a policy.

The node sends nothing before a page has the controls, and zero as soon as none has them. It takes the
contract of `policy_node` and `recorder_node`, and needs a recorder beside it.

    ros2 run ttm_policy web_node --ros-args -p contract:=my_robot.yaml -p rate_hz:=10.0
    python -m ttm_policy web_node --ros-args …            (the same without a ROS install)
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ttm_policy.node_parameters import read_parameters
from ttm_policy.parameters import WebParameters
from ttm_policy.programs import END_WITHIN_S, StopSignals, run_with_ros, spin
from ttm_policy.teleop.controls import Controls, default_keyboard
from ttm_policy.teleop.session import DrivingNode, TeleopSession, load_context
from ttm_policy.web.access import DriverLock, is_loopback, require_token
from ttm_policy.web.robot import RobotOverRos, WebSource
from ttm_policy.web.server import WebServer
from ttm_policy.web.views import Album, page_controls, page_layout


class WebNode(DrivingNode):
    """A `TeleopSession` whose source is the web page, and the page's server."""

    def __init__(self) -> None:
        """Connect everything. Raises `UserError` for parameters that do not fit."""
        super().__init__("web_node", WebParameters)
        parameters = read_parameters(self, WebParameters)
        if not parameters.token:  # 128 random bits
            parameters = replace(parameters, token=secrets.token_urlsafe(16))
        require_token(parameters.token)
        context = load_context(parameters)
        drives, lock = default_keyboard(context), DriverLock(parameters.page_timeout_s)
        source = WebSource(lock, Controls(page_controls(drives), context))
        self.session = TeleopSession(self, context, parameters, source)
        robot = RobotOverRos(self, self.session, parameters, page_layout(context, drives))
        self._album = Album(Path(parameters.folder).expanduser())
        self._host = parameters.host
        self._server = WebServer(robot, self._album, lock, parameters)

    def serve(self) -> None:
        """Serve the page. Raises `UserError` if its address cannot be had."""
        self._server.start()
        if not is_loopback(self._host):
            self.get_logger().warning(
                "the page is served unencrypted: whoever reads its address on the network can drive"
            )
        print(f"drive and record at {self.address}", flush=True)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return self._server.address

    def close(self) -> None:
        """Stop the robot, and end the server."""
        super().close()
        self._server.close()
        self._album.close()


def _run() -> int:
    signals = StopSignals(END_WITHIN_S)
    node = WebNode()
    try:
        node.serve()
        spin(node, lambda: signals.requested)
    finally:
        node.close()
        node.destroy_node()
    return 0


def main() -> NoReturn:
    """Run the node until a signal, and stop the robot in every case.

    The exit code is 0 after a signal, 2 for bad parameters, 1 for a failure.
    """
    run_with_ros("web_node", _run)
