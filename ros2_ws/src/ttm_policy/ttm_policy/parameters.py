"""The parameters of the nodes: names, types, defaults, units, ranges and help, declared once.

The nodes (`ttm_policy.declare`), the launch arguments (`ttm_policy.launching`), the options
of `ttm robot` and the tables in `ros2_ws/docs/parameters.md` are made from these dataclasses. This module
imports no ROS, so that programs can read it where ROS is not installed.

    python -m ttm_policy.parameters        (print the tables of that page)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ttm.policy.errors import UserError
from ttm.policy.network.config import LONGEST_DELAY_S
from ttm.policy.run.engine_options import EngineName, Precision
from ttm.policy.run.execution.choice import EXECUTION_HELP, NEWEST
from ttm.sim.environment import KITCHEN
from ttm.sim.evaluation.condition import Condition
from ttm.sim.tasks.table import TASKS
from ttm_policy.parameter_sets.common_parameters import (
    LONGEST_AGE_S,
    Autostart,
    BondHeartbeatPeriod,
    ContractPath,
    EStopRearm,
    EStopTimeout,
    StampedBaseCommands,
)
from ttm_policy.parameter_sets.declared_parameter import (
    DeclaredParameter,
    NodeParameters,
    Parameter,
    markdown_table,
    parameters_of,
)
from ttm_policy.parameter_sets.driving_parameters import DrivingParameters
from ttm_policy.parameter_sets.limit_parameters import LIMITS, LimitParameters
from ttm_policy.parameter_sets.recorder_parameters import RecorderParameters
from ttm_policy.parameter_sets.teleop_parameters import TeleopDevice, TeleopParameters
from ttm_policy.parameter_sets.web_parameters import WebParameters

__all__ = [
    "LIMITS",
    "DeclaredParameter",
    "DrivingParameters",
    "NodeParameters",
    "Parameter",
    "PolicyParameters",
    "RecorderParameters",
    "SimParameters",
    "TeleopDevice",
    "TeleopParameters",
    "WebParameters",
    "markdown_table",
    "parameters_of",
]


Resume = Literal["in_simulation", "always", "never"]

ProbeOverRos = Literal["live", "erase"]
"""The probes of `ttm evaluate --probe` that a robot over ROS 2 knows, too."""


@dataclass(frozen=True)
class PolicyParameters(LimitParameters):
    """The parameters of `policy_node`. The tick rate is not among them: the checkpoint holds it."""

    checkpoint: Annotated[
        str,
        Parameter(
            "The policy's .safetensors file. By default the policy that ships with the project is "
            "used.",
            is_path=True,
        ),
    ] = ""
    instruction: Annotated[
        str,
        Parameter("What the robot is to do. The topic `instruction` can set it later."),
    ] = ""
    contract: ContractPath = ""
    device: Annotated[str, Parameter("Torch device of the network, such as cpu or cuda.")] = "cpu"
    engine: Annotated[
        EngineName,
        Parameter("What runs the network. auto takes openvino on a CPU and torch elsewhere."),
    ] = "auto"
    precision: Annotated[
        Precision,
        Parameter(
            "Precision of the network. bfloat16 shortens the ticks of large networks on a CPU, "
            "with an error of about 0.4 % of the command."
        ),
    ] = "float32"
    execution: Annotated[str, Parameter(EXECUTION_HELP)] = NEWEST
    threads: Annotated[
        int,
        Parameter(
            "CPU threads that run the network. Another number of threads rounds sums differently.",
            minimum=1,
        ),
    ] = 1
    autostart: Autostart = True
    bond_heartbeat_period: BondHeartbeatPeriod = 0.25
    lockstep: Annotated[
        bool,
        Parameter(
            "Tick once for each complete observation. This is for simulators that wait for the "
            "command; a robot needs ticks at the policy's rate."
        ),
    ] = False
    start_on_instruction: Annotated[
        bool,
        Parameter(
            "Whether the robot moves as soon as there is an instruction. If false, it stands still "
            "until the service start or the action execute_instruction begins a goal."
        ),
    ] = True
    goal_timeout_s: Annotated[
        float,
        Parameter(
            "Time limit of a goal that has none of its own; 0 for none.",
            unit="s",
            minimum=0,
            live=True,
        ),
    ] = 0.0
    preempt_goals: Annotated[
        bool,
        Parameter(
            "Whether a new goal takes the place of the one in hand. If false, it is refused.",
            live=True,
        ),
    ] = False
    max_age_s: Annotated[
        float,
        Parameter(
            "Largest accepted age of an observation. The robot stands still while the oldest input "
            "is older, or has a stamp that is further ahead of the clock.",
            unit="s",
            positive=True,
            maximum=LONGEST_AGE_S,
            live=True,
        ),
    ] = 0.5
    stop_after_s: Annotated[
        float,
        Parameter(
            "Time without good observations before a stop. After it, the robot stands still until "
            "the memory is reset, the instruction changes, or the node is activated anew.",
            unit="s",
            minimum=0,
            live=True,
        ),
    ] = 2.0
    e_stop_rearm: EStopRearm = True
    e_stop_timeout_s: EStopTimeout = 0.0
    command_rate_hz: Annotated[
        float,
        Parameter(
            "How often a command is sent again until the next tick. Controllers with a short "
            "time-out, such as MoveIt Servo with 0.1 s, need 20 to 50; 0 sends each command once.",
            unit="Hz",
            minimum=0,
            maximum=200,
        ),
    ] = 30.0
    lifespan_ticks: Annotated[
        float,
        Parameter(
            "How long a command is sent again if no tick follows. Then the robot is stopped.",
            unit="ticks",
            minimum=1,
            maximum=100,
        ),
    ] = 1.5
    cmd_vel_stamped: StampedBaseCommands = True
    snapshot_path: Annotated[
        str,
        Parameter(
            "File that the memory is saved to and restored from. The services snapshot_memory and "
            "restore_memory use it.",
            is_path=True,
        ),
    ] = "policy_memory.npz"
    recovery_path: Annotated[
        str,
        Parameter(
            "File that keeps the memory while an episode runs. A process that is started again after "
            "a crash goes on with it. By default nothing is kept. It is removed when the process ends "
            "in order.",
            is_path=True,
        ),
    ] = ""
    recovery_period_s: Annotated[
        float,
        Parameter(
            "Time between writes of recovery_path; 0 for every tick.",
            unit="s",
            minimum=0,
        ),
    ] = 0.0
    recovery_max_age_s: Annotated[
        float,
        Parameter(
            "Largest age of a recovery_path that is used. With an older one the memory is empty.",
            unit="s",
            positive=True,
        ),
    ] = 30.0
    resume_after_crash: Annotated[
        Resume,
        Parameter(
            "Go on after a crash. Otherwise a robot whose policy is started again with a recovery_path "
            "stands still until the service rearm. in_simulation goes on in lockstep and with the "
            "contract of the simulated robot alone."
        ),
    ] = "in_simulation"


@dataclass(frozen=True)
class SimParameters(NodeParameters):
    """The parameters of `sim_node`."""

    env: Annotated[
        str,
        Parameter(
            "Gymnasium ID of the environment. A module that registers it may stand before it, as "
            "in my_package:MyEnv-v0."
        ),
    ] = KITCHEN
    task: Annotated[
        str,
        Parameter(
            "Task of the environment. By default the one of the instruction, or the environment's "
            "first. The simulated kitchen has: "
            + "; ".join(f"{name} ({task.description})" for name, task in TASKS.items())
            + "."
        ),
    ] = ""
    instruction: Annotated[
        str,
        Parameter(
            "Run only initial states that ask for this. By default each initial state has an "
            "instruction of its own."
        ),
    ] = ""
    episodes: Annotated[
        int, Parameter("Number of episodes. The node exits after the last one.", minimum=1)
    ] = 1
    first_seed: Annotated[int, Parameter("Number of the first initial state.", minimum=0)] = 0
    gap: Annotated[
        int,
        Parameter(
            "Ticks for which a memory task hides its cue; -1 to draw them.",
            unit="ticks",
            minimum=-1,
        ),
    ] = -1
    probe: Annotated[
        ProbeOverRos,
        Parameter(
            "What is done to the policy's memory. erase empties it once, at the first tick at which "
            "a memory task lets the robot act, by the service erase_memory."
        ),
    ] = "live"
    max_ticks: Annotated[
        int, Parameter("Length limit of an episode; 0 for the task's own.", unit="ticks", minimum=0)
    ] = 0
    out: Annotated[
        str,
        Parameter(
            "Folder for result.json and actions.npz. By default nothing is written. result.json "
            "has the format of `ttm evaluate`.",
            is_path=True,
        ),
    ] = ""
    video: Annotated[
        str, Parameter("Path of a film of the first episode, .mp4 or .webp.", is_path=True)
    ] = ""
    contract: ContractPath = ""
    lockstep: Annotated[
        bool,
        Parameter(
            "Wait for the command of each observation. The parameter lockstep of policy_node must be "
            "the same. If false, time runs on as on a robot."
        ),
    ] = False
    driver: Annotated[
        Literal["policy", "person"],
        Parameter(
            "Who drives. For a person, scenes go on until an episode is recorded, or the services "
            "next_scene or same_scene begin another one; no policy is waited for, and time runs on: "
            "lockstep must be false."
        ),
    ] = "policy"
    rate: Annotated[
        float,
        Parameter(
            "Simulated seconds per second. 0 means as fast as possible in lockstep, otherwise 1.",
            minimum=0,
        ),
    ] = 0.0
    command_delay_s: Annotated[
        float,
        Parameter(
            "How late the robot carries out its commands. In real time this adds to the time that the "
            "policy takes. The policy is not told of it.",
            unit="s",
            minimum=0,
            maximum=LONGEST_DELAY_S,
        ),
    ] = 0.0
    cmd_vel_stamped: StampedBaseCommands = True
    policy_node: Annotated[
        str, Parameter("Name of the node whose memory is reset before each episode.")
    ] = "policy_node"
    recorder: Annotated[
        str, Parameter("Name of the recorder after whose episodes the scene changes.")
    ] = "recorder_node"
    startup_timeout_s: Annotated[
        float, Parameter("Longest wait for the policy, in wall time.", unit="s", positive=True)
    ] = 120.0
    command_timeout_s: Annotated[
        float,
        Parameter("Longest wait for a command in lockstep, in wall time.", unit="s", positive=True),
    ] = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.driver == "person" and self.lockstep:
            raise UserError(
                "lockstep is true, but a person cannot drive in lockstep; set it to false"
            )

    @property
    def condition(self) -> Condition:
        """The gap, the probe and the delay as an evaluation tells them."""
        gap = None if self.gap < 0 else self.gap
        return Condition(gap, self.probe, delay_s=self.command_delay_s)


if __name__ == "__main__":
    print(f"`policy_node`:\n\n{markdown_table(PolicyParameters)}\n")
    print(f"`sim_node`:\n\n{markdown_table(SimParameters)}\n")
    print(f"`recorder_node`:\n\n{markdown_table(RecorderParameters)}\n")
    print(f"`teleop_node`:\n\n{markdown_table(TeleopParameters)}\n")
    print(f"`web_node`:\n\n{markdown_table(WebParameters)}")
