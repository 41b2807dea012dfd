"""Records episodes from a robot's topics as a managed (life-cycle) ROS 2 node.

It takes the contract of `policy_node`, so that what is recorded is what a policy will see. configure
reads contract and spec, activate allows episodes to begin, deactivate discards an episode in hand.

    ros2 run ttm_policy recorder_node --ros-args -p contract:=my_robot.yaml -p rate_hz:=10.0
    python -m ttm_policy recorder_node --ros-args …            (the same without a ROS install)
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NoReturn

from diagnostic_msgs.msg import DiagnosticStatus

from ttm_policy.lifecycle import SUCCESS, ManagedNode
from ttm_policy.node_parameters import read_parameters
from ttm_policy.parameters import RecorderParameters
from ttm_policy.programs import StopSignals, run_with_ros, spin
from ttm_policy.recording.recorder import HELP, Keys, Recorder
from ttm_policy.teleop.devices import raw_terminal, read_key


class RecorderNode(ManagedNode):
    """The life cycle of a `Recorder`, and its diagnostics."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        super().__init__("recorder_node", RecorderParameters, "recorder")

    def _configure(self) -> None:
        self.recorder = Recorder(self, read_parameters(self, RecorderParameters))

    def _activate(self) -> None:
        assert self.recorder is not None
        self.recorder.active = True

    def _deactivate(self) -> None:
        """Discard an episode in hand; save one that was stopped."""
        if self.recorder is not None:
            self.recorder.interrupt()

    def _drop(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None

    def _status(self) -> DiagnosticStatus:
        if self.recorder is not None:
            return self.recorder.diagnosis(self._name_of_status)
        return DiagnosticStatus(level=DiagnosticStatus.WARN, message=self._problem)


def _run() -> int:
    signals = StopSignals()
    node = RecorderNode()
    try:
        transitions = (node.trigger_configure, node.trigger_activate)
        if node.get_parameter("autostart").value and any(each() != SUCCESS for each in transitions):
            return 2
        keys, takes_keys = Keys(), node.get_parameter("keys").value

        def take_keys() -> None:
            while takes_keys and (key := read_key()) is not None:
                keys.handle(key, node.recorder)

        with ExitStack() as stack:
            if takes_keys:
                stack.enter_context(raw_terminal())
                print(HELP, flush=True)
            spin(node, lambda: signals.requested or keys.quit, take_keys)
        return 0
    finally:
        node.on_cleanup(None)
        node.destroy_node()


def main() -> NoReturn:
    """Run the node until a signal or the key `q`."""
    run_with_ros("recorder_node", _run)
