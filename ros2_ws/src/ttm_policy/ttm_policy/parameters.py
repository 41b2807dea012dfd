"""The parameters of the nodes: names, types, defaults, units, ranges and help, declared once.

The nodes (`ttm_policy.programs`), the launch arguments (`ttm_policy.launching`), the options
of `ttm robot` and the tables in `ros2_ws/docs/parameters.md` are made from these dataclasses. This module
imports no ROS, so that programs can read it where ROS is not installed.

    python -m ttm_policy.parameters        (print the tables of that page)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from ttm.datasets.layout import MOST_JPEG_QUALITY
from ttm.policy.config import LONGEST_DELAY_S, EngineName, Precision
from ttm.policy.errors import (
    UserError,
    require_above_0,
    require_at_least,
    require_at_most,
    require_choice,
)
from ttm.policy.execution import EXECUTION_HELP, NEWEST
from ttm.sim.condition import Condition
from ttm.sim.shipped import KITCHEN
from ttm.sim.tasks.table import TASKS

# How a node's parameters are declared: a dataclass whose fields carry help, unit and range.
#
# This module imports no ROS, so that programs can read the parameters where ROS is not installed.


@dataclass(frozen=True)
class Parameter:
    """The description of a parameter, beside its name, type and default.

    The first sentence of `help` stands alone in tables.
    """

    help: str
    unit: str = ""
    minimum: float | None = None
    """The smallest value that is accepted."""
    maximum: float | None = None
    """The largest value that is accepted, beside `minimum` or `positive`."""
    positive: bool = False
    """Whether only values above 0 are accepted."""
    is_path: bool = False
    """Whether the value is the path of a file or folder."""
    is_limit: bool = False
    """Whether this parameter limits motion. Tables show the limits last."""
    live: bool = False
    """Whether a running node takes a new value, from its next tick on."""


@dataclass(frozen=True)
class DeclaredParameter:
    """One parameter of a node, as its dataclass declares it."""

    name: str
    type: type[Any]
    """bool, int, float or str."""
    default: Any
    choices: tuple[str, ...]
    """The values that are accepted, or () if there is no such list."""
    about: Parameter

    @property
    def default_text(self) -> str:
        """The default as YAML and launch files write it."""
        return str(self.default).lower() if self.type is bool else str(self.default)

    @property
    def range_text(self) -> str:
        """The accepted values in words, such as `> 0`; empty if all values are accepted."""
        if self.choices:
            return ", ".join(self.choices)
        if self.about.positive:
            return "> 0" if self.about.maximum is None else f"> 0, <= {self.about.maximum:g}"
        if self.about.maximum is not None:
            return f"{self.about.minimum:g} to {self.about.maximum:g}"
        return "" if self.about.minimum is None else f">= {self.about.minimum:g}"

    def check(self, value: Any, label: str = "") -> None:
        """Raise `UserError` if `value` is out of range or NaN.

        label: the name in the error message.
        """
        label = label or self.name
        if self.choices:
            require_choice(label, value, self.choices)
        if self.about.positive:
            require_above_0({label: value})
        if self.about.minimum is not None:
            require_at_least(self.about.minimum, {label: value})
        if self.about.maximum is not None:
            require_at_most(self.about.maximum, {label: value})


class NodeParameters:
    """The base of the dataclasses, one for each node.

    Construction raises `UserError` for values that are out of range.
    """

    def __post_init__(self) -> None:
        for parameter in parameters_of(type(self)):
            parameter.check(getattr(self, parameter.name))


def parameters_of(node_parameters: type[NodeParameters]) -> tuple[DeclaredParameter, ...]:
    """Return the parameters that a dataclass declares, in its order, with the limits last."""
    hashable: Any = node_parameters
    hints, declared = _hints(hashable), []
    for item in fields(node_parameters):  # type: ignore[arg-type]
        kind, about = get_args(hints[item.name])
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        assert item.default is not MISSING
        declared.append(
            DeclaredParameter(item.name, str if choices else kind, item.default, choices, about)
        )
    return tuple(sorted(declared, key=lambda parameter: parameter.about.is_limit))


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields. To evaluate them takes 3 ms, at each change of one."""
    return get_type_hints(kind, include_extras=True)


def markdown_table(node_parameters: type[NodeParameters]) -> str:
    """Return the table of `ros2_ws/docs/parameters.md` with a row for each parameter."""
    rows = ["| parameter | default | unit | range | meaning |", "|---|---|---|---|---|"]
    for parameter in parameters_of(node_parameters):
        summary = parameter.about.help.split(". ")[0].rstrip(".")
        cells = (f"`{parameter.name}`", parameter.default_text, parameter.about.unit)
        rows.append(f"| {' | '.join((*cells, parameter.range_text, summary))} |")
    return "\n".join(rows)


# Parameters that several nodes have.

ContractPath = Annotated[
    str,
    Parameter(
        "YAML file that maps topics to the policy's inputs and outputs. By default the contract of "
        "the simulated robot is used.",
        is_path=True,
    ),
]
Autostart = Annotated[
    bool,
    Parameter(
        "Configure and activate the node at the start. If false, it waits for life-cycle transitions."
    ),
]
StampedBaseCommands = Annotated[
    bool, Parameter("Base commands are TwistStamped messages. If false, they are Twist messages.")
]
SpecSource = Annotated[
    str,
    Parameter(
        "What the episodes are like: a checkpoint, other episodes, or a YAML file. The YAML file is "
        "that of `ttm data show --spec`, and gives the parts of the action their limits; without "
        "one, they have none. `shipped` is the policy that ships with the project, and the default for "
        "its own contract.",
        is_path=True,
    ),
]
ControlRate = Annotated[
    float,
    Parameter("Ticks a second; 0 for those of the contract or the spec.", unit="Hz", minimum=0),
]
BondHeartbeatPeriod = Annotated[
    float,
    Parameter(
        "Time between heartbeats for Nav2; 0 for no bond. They tell its lifecycle manager that the "
        "active node is alive, and need the ROS package bond.",
        unit="s",
        minimum=0,
        maximum=2,
    ),
]
EStopRearm = Annotated[
    bool,
    Parameter(
        "Whether an emergency stop ends only with the service rearm. If false, the robot goes on "
        "by itself as soon as the emergency stop is released."
    ),
]
EStopTimeout = Annotated[
    float,
    Parameter(
        "Longest silence of e_stop without a stop; 0 for any. With a value above 0 "
        "the robot does not move before the first message, either.",
        unit="s",
        minimum=0,
        maximum=60,
    ),
]
LONGEST_AGE_S = 60.0
"""The upper end of `max_age_s`. A robot that may see nothing for longer moves blindly."""


# Finds typing errors in names that ROS itself ignores: of launch arguments and of parameters.


def require_known(
    kind: str, given: Iterable[str], known: Iterable[str], cutoff: float = 0.75
) -> list[str]:
    """Return the names in `given` that are not in `known`.

    kind: what they are, for the message. cutoff: how alike two names must be, of 1. Raises `UserError` if
    one of them looks like a known name with a typing error, since the robot would otherwise move with the
    default of what was meant.
    """
    names = list(known)
    strangers = [name for name in given if name not in names]
    for name in strangers:
        if close := get_close_matches(name, names, n=1, cutoff=cutoff):
            raise UserError(f"there is no {kind} {name}; did you mean {close[0]}?")
    return strangers


# The parameters that limit what a node sends to the robot.
#
# All of them bound the numbers in the messages, after `scale` and `per_second` of the contract.


def _limit(help_text: str, unit: str, most: float | None = None) -> Parameter:
    """most: what no robot exceeds, so that a limit of speed cannot be switched off."""
    return Parameter(help_text, unit=unit, maximum=most, positive=True, is_limit=True, live=True)


@dataclass(frozen=True)
class LimitParameters(NodeParameters):
    """Limits of speed, and of acceleration and jerk, which may be inf for none."""

    max_forward_m_s: Annotated[
        float, _limit("Limit of the base's speed, both ways.", "m/s", 10)
    ] = 0.5
    max_forward_accel_m_s2: Annotated[
        float, _limit("Limit of the base's acceleration.", "m/s²")
    ] = math.inf
    max_forward_jerk_m_s3: Annotated[float, _limit("Limit of the base's jerk.", "m/s³")] = math.inf
    max_yaw_rad_s: Annotated[float, _limit("Limit of the base's turning speed.", "rad/s", 20)] = 1.0
    max_yaw_accel_rad_s2: Annotated[
        float, _limit("Limit of the base's turning acceleration.", "rad/s²")
    ] = math.inf
    max_yaw_jerk_rad_s3: Annotated[float, _limit("Limit of the base's turning jerk.", "rad/s³")] = (
        math.inf
    )
    max_translation_m: Annotated[
        float, _limit("Limit of the gripper's displacement.", "m per tick", 1)
    ] = 0.1
    max_translation_accel_m_s2: Annotated[
        float, _limit("Limit of the gripper's acceleration.", "m/s²")
    ] = math.inf
    max_translation_jerk_m_s3: Annotated[float, _limit("Limit of the gripper's jerk.", "m/s³")] = (
        math.inf
    )
    max_rotation_rad: Annotated[
        float, _limit("Limit of the gripper's rotation.", "rad per tick", 3)
    ] = 0.3
    max_rotation_accel_rad_s2: Annotated[
        float, _limit("Limit of the gripper's turning acceleration.", "rad/s²")
    ] = math.inf
    max_rotation_jerk_rad_s3: Annotated[
        float, _limit("Limit of the gripper's turning jerk.", "rad/s³")
    ] = math.inf
    max_joint_rad_s: Annotated[
        float,
        _limit("Limit of each joint's speed. Joints that slide have it in m/s.", "rad/s", 50),
    ] = 1.0
    max_joint_accel_rad_s2: Annotated[
        float, _limit("Limit of each joint's acceleration.", "rad/s²")
    ] = math.inf
    max_joint_jerk_rad_s3: Annotated[float, _limit("Limit of each joint's jerk.", "rad/s³")] = (
        math.inf
    )

    @property
    def limits(self) -> dict[str, float]:
        """The value of each limit by its name, without the other parameters of the node."""
        return {name: getattr(self, name) for name in LIMITS}


LIMITS = tuple(p.name for p in parameters_of(LimitParameters))
"""The names of all limits."""


@dataclass(frozen=True)
class LimitKind:
    """A limit that a contract may name, with the parameters that bound its derivatives."""

    speed: str
    acceleration: str
    jerk: str
    moves: str
    """What it limits: `linear` or `angular` fields of a twist, or `joints`."""
    per_tick: bool = False
    """Whether the limit is a displacement in one tick instead of a speed."""


def _kind(name: str, unit: str, moves: str, speed: str, *, per_tick: bool = False) -> LimitKind:
    acceleration, jerk = f"max_{name}_accel_{unit}_s2", f"max_{name}_jerk_{unit}_s3"
    return LimitKind(speed, acceleration, jerk, moves, per_tick)


_KINDS = (
    _kind("forward", "m", "linear", "max_forward_m_s"),
    _kind("yaw", "rad", "angular", "max_yaw_rad_s"),
    _kind("translation", "m", "linear", "max_translation_m", per_tick=True),
    _kind("rotation", "rad", "angular", "max_rotation_rad", per_tick=True),
    _kind("joint", "rad", "joints", "max_joint_rad_s"),
)
LIMIT_KINDS: Mapping[str, LimitKind] = {kind.speed: kind for kind in _KINDS}
"""The limits that a contract may name."""


# The parameters of every node by which a person drives.


@dataclass(frozen=True)
class DrivingParameters(LimitParameters):
    """What `teleop_node` and `web_node` share."""

    contract: ContractPath = ""
    spec: SpecSource = ""
    rate_hz: ControlRate = 0.0
    policy: Annotated[
        str,
        Parameter(
            "Name of the policy node in whose place the person drives. It drives until somebody touches "
            "the controls, and again when he gives back. Empty for none."
        ),
    ] = ""
    max_age_s: Annotated[
        float,
        Parameter(
            "Largest age of what measures the joints and the gripper. The robot stands still "
            "while it is older.",
            unit="s",
            positive=True,
            maximum=LONGEST_AGE_S,
        ),
    ] = 0.5
    e_stop_rearm: EStopRearm = True
    e_stop_timeout_s: EStopTimeout = 0.0
    cmd_vel_stamped: StampedBaseCommands = True


# The parameters of `recorder_node`.


@dataclass(frozen=True)
class RecorderParameters(NodeParameters):
    """The parameters of `recorder_node`."""

    folder: Annotated[
        str,
        Parameter(
            "Folder of the episodes. Numbers go on after those that are there.", is_path=True
        ),
    ] = "episodes"
    contract: ContractPath = ""
    spec: SpecSource = ""
    rate_hz: ControlRate = 0.0
    instruction: Annotated[
        str, Parameter("What the robot is told. The topic `instruction` can set it later.")
    ] = ""
    jpeg_quality: Annotated[
        int,
        Parameter(
            "Quality of stored frames as JPEGs; 0 stores them without loss.",
            minimum=0,
            maximum=MOST_JPEG_QUALITY,
        ),
    ] = 0
    countdown_s: Annotated[
        float, Parameter("Time between start and the first tick.", unit="s", minimum=0)
    ] = 3.0
    preroll_s: Annotated[
        float,
        Parameter("How much of the time before the start is recorded too.", unit="s", minimum=0),
    ] = 0.0
    max_delay_s: Annotated[
        float,
        Parameter(
            "Longest time that a message takes to arrive. Ticks are written so much later.",
            unit="s",
            minimum=0,
        ),
    ] = 0.3
    min_fresh: Annotated[
        float,
        Parameter(
            "Smallest portion of ticks with new messages of every input. Episodes with fewer are "
            "refused; 0 keeps all.",
            minimum=0,
            maximum=1,
        ),
    ] = 0.9
    cmd_vel_stamped: StampedBaseCommands = True
    simulator: Annotated[
        str,
        Parameter(
            "Name of the simulated robot that begins its scene anew for each episode. That is for a policy "
            "that drives from the start of a scene. Empty for none."
        ),
    ] = ""
    keys: Annotated[bool, Parameter("Take keys from the terminal. ? lists them.")] = False
    autostart: Autostart = True
    bond_heartbeat_period: BondHeartbeatPeriod = 0.25


# The parameters of `teleop_node`.

TeleopDevice = Literal["keyboard", "gamepad", "pose", "leader"]
"""What a person may hold in his hands."""


@dataclass(frozen=True)
class TeleopParameters(DrivingParameters):
    """The parameters of `teleop_node`."""

    source: Annotated[
        TeleopDevice,
        Parameter(
            "What the person drives with. That is the keys of the terminal, a gamepad, the pose of a tracked "
            "hand, or a leader arm."
        ),
    ] = "keyboard"
    joystick: Annotated[
        str,
        Parameter(
            "Device of a gamepad of this computer. It is published on the topic `joy` while nobody else "
            "publishes that, as `joy_node` would. Empty for none."
        ),
    ] = "/dev/input/js0"
    controls: Annotated[
        str,
        Parameter(
            "YAML file that says which control drives which value of the action. By default they follow "
            "from the contract; the node prints them at the start.",
            is_path=True,
        ),
    ] = ""
    recorder: Annotated[
        str,
        Parameter(
            "Name of the recorder that space, f, d and u on the keyboard call. Empty for none."
        ),
    ] = ""


# The parameters of `web_node`.


@dataclass(frozen=True)
class WebParameters(DrivingParameters):
    """The parameters of `web_node`."""

    folder: Annotated[
        str, Parameter("Folder of the episodes that the page lists.", is_path=True)
    ] = "episodes"
    recorder: Annotated[str, Parameter("Name of the recorder that the page starts and stops.")] = (
        "recorder_node"
    )
    simulator: Annotated[
        str,
        Parameter("Name of the simulated robot, whose scenes the page changes. Empty for none."),
    ] = ""
    host: Annotated[
        str,
        Parameter(
            "Address at which the page is served. By default only programs on this machine can reach it; "
            "0.0.0.0 serves it to the whole network, without encryption."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Parameter("Port of the page; 0 takes one that is free.", minimum=0, maximum=65535),
    ] = 8700
    token: Annotated[
        str,
        Parameter(
            "Secret part of the page's address, of letters, digits, - and _. By default it is new at each "
            "start."
        ),
    ] = ""
    page_timeout_s: Annotated[
        float,
        Parameter(
            "Longest silence of the page that drives. After it the robot stops, and another page may "
            "drive.",
            unit="s",
            positive=True,
        ),
    ] = 0.5


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
