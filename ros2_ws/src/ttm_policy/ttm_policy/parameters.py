"""The parameters of the nodes: names, types, defaults, units, ranges and help, declared once.

The fields of a dataclass are the parameters of a node. The nodes, the launch arguments, the options of
`ttm robot` and the tables in `ros2_ws/docs/parameters.md` are made from them. This module imports no ROS.

    python -m ttm_policy.parameters        (print the tables of that page)
"""

# ruff: noqa: RUF009  (`param` makes a field of a dataclass)

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from ttm.datasets.layout import MOST_JPEG_QUALITY
from ttm.policy.config import ACTOR_HELP, LONGEST_DELAY_S, EngineName, Precision
from ttm.policy.errors import (
    UserError,
    require_above_0,
    require_at_least,
    require_at_most,
    require_choice,
)
from ttm.policy.execution import EXECUTION_HELP, NEWEST
from ttm.sim.condition import KITCHEN, Condition
from ttm.sim.tasks.table import TASKS


@dataclass(frozen=True)
class Parameter:
    """The description of a parameter, beside its name, type and default.

    The first sentence of `help` stands alone in tables. Values are accepted from `minimum`, or with
    `positive` from above 0, to `maximum`. A parameter that is a limit of motion stands last in tables.
    A running node takes a new value of a parameter that is `live`, from its next tick on.
    """

    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    positive: bool = False
    is_path: bool = False
    is_limit: bool = False
    live: bool = False


def param(default: Any, text: str, **about: Any) -> Any:
    """Return the field of a parameter; what several nodes have is an annotated type instead."""
    return field(default=default, metadata={"about": Parameter(text, **about)})


def file_path(default: str, text: str) -> Any:
    """Return the field of a parameter that is the path of a file or folder."""
    return param(default, text, is_path=True)


def seconds(default: float, text: str, **about: Any) -> Any:
    """Return the field of a time in seconds, from 0 on unless it is `positive`."""
    least = None if about.get("positive") else 0
    return param(default, text, unit="s", minimum=least, **about)


@dataclass(frozen=True)
class DeclaredParameter:
    """One parameter of a node, as its dataclass declares it.

    `type` is bool, int, float or str. `choices` are the accepted values, () if there is no such list.
    """

    name: str
    type: type[Any]
    default: Any
    choices: tuple[str, ...]
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
        """Raise `UserError` if `value` is out of range or NaN. label: the name in the message."""
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
    """The base of the dataclasses. Construction raises `UserError` for values that are out of range."""

    def __post_init__(self) -> None:
        for parameter in parameters_of(type(self)):
            parameter.check(getattr(self, parameter.name))


def parameters_of(node_parameters: type[NodeParameters]) -> tuple[DeclaredParameter, ...]:
    """Return the parameters that a dataclass declares, in its order, with the limits last."""
    hashable: Any = node_parameters
    return _declared(hashable)


@cache
def _declared(node_parameters: Any) -> tuple[DeclaredParameter, ...]:
    hints, declared = get_type_hints(node_parameters, include_extras=True), []
    for item in fields(node_parameters):
        kind, about = hints[item.name], item.metadata.get("about")
        if about is None:
            kind, about = get_args(kind)
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        kind = str if choices else kind
        declared.append(DeclaredParameter(item.name, kind, item.default, choices, about))
    return tuple(sorted(declared, key=lambda parameter: parameter.about.is_limit))


def require_known(
    kind: str, given: Iterable[str], known: Iterable[str], cutoff: float = 0.75
) -> list[str]:
    """Return the names in `given` that are not in `known`. kind: what they are, for the message.

    Raises `UserError` if one is as alike as `cutoff` to a known name: a typing error, with which the robot
    would move with the default of what was meant.
    """
    names = list(known)
    strangers = [name for name in given if name not in names]
    for name in strangers:
        if close := get_close_matches(name, names, n=1, cutoff=cutoff):
            raise UserError(f"there is no {kind} {name}; did you mean {close[0]}?")
    return strangers


# Parameters that several nodes have.

Instruction = Annotated[
    str, Parameter("What the robot is to do. The topic `instruction` can set it later.")
]
ContractPath = Annotated[
    str,
    Parameter(
        "YAML file that maps topics to the policy's inputs and outputs. By default the simulated robot's.",
        is_path=True,
    ),
]
Autostart = Annotated[bool, Parameter("Configure and activate the node at the start.")]
StampedBaseCommands = Annotated[
    bool, Parameter("Base commands are TwistStamped messages. If false, they are Twist messages.")
]
SpecSource = Annotated[
    str,
    Parameter(
        "What the episodes are like: a checkpoint, other episodes, or a YAML file. The file is that of "
        "`ttm data show --spec`, which limits the parts of the action. `shipped`, the policy of the "
        "project, is the default for its contract.",
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
        "Time between heartbeats for Nav2; 0 for no bond. They need the ROS package bond.",
        unit="s",
        minimum=0,
        maximum=2,
    ),
]
EStopRearm = Annotated[
    bool, Parameter("Whether an emergency stop ends only with the service rearm.")
]
EStopTimeout = Annotated[
    float,
    Parameter(
        "Longest silence of e_stop without a stop; 0 for any. Otherwise the robot also waits for the "
        "first message.",
        unit="s",
        minimum=0,
        maximum=60,
    ),
]
LONGEST_AGE_S = 60.0
"""The upper end of `max_age_s`. A robot that may see nothing for longer moves blindly."""


def _limit(what: str, unit: str, default: float = math.inf, most: float | None = None) -> Any:
    """most: what no robot exceeds, so that a limit of speed cannot be switched off."""
    about = {"unit": unit, "maximum": most, "positive": True, "is_limit": True, "live": True}
    return param(default, f"Limit of {what}.", **about)


@dataclass(frozen=True)
class LimitParameters(NodeParameters):
    """Limits of speed, and of acceleration and jerk, which may be inf for none.

    They bound the numbers in the messages, after `scale` and `per_second` of the contract.
    """

    max_forward_m_s: float = _limit("the base's speed, both ways", "m/s", 0.5, most=10)
    max_forward_accel_m_s2: float = _limit("the base's acceleration", "m/s²")
    max_forward_jerk_m_s3: float = _limit("the base's jerk", "m/s³")
    max_yaw_rad_s: float = _limit("the base's turning speed", "rad/s", 1.0, most=20)
    max_yaw_accel_rad_s2: float = _limit("the base's turning acceleration", "rad/s²")
    max_yaw_jerk_rad_s3: float = _limit("the base's turning jerk", "rad/s³")
    max_translation_m: float = _limit("the gripper's displacement", "m per tick", 0.1, most=1)
    max_translation_accel_m_s2: float = _limit("the gripper's acceleration", "m/s²")
    max_translation_jerk_m_s3: float = _limit("the gripper's jerk", "m/s³")
    max_rotation_rad: float = _limit("the gripper's rotation", "rad per tick", 0.3, most=3)
    max_rotation_accel_rad_s2: float = _limit("the gripper's turning acceleration", "rad/s²")
    max_rotation_jerk_rad_s3: float = _limit("the gripper's turning jerk", "rad/s³")
    max_joint_rad_s: float = _limit(
        "each joint's speed. Joints that slide have it in m/s", "rad/s", 1.0, most=50
    )
    max_joint_accel_rad_s2: float = _limit("each joint's acceleration", "rad/s²")
    max_joint_jerk_rad_s3: float = _limit("each joint's jerk", "rad/s³")

    @property
    def limits(self) -> dict[str, float]:
        """The value of each limit by its name, without the other parameters of the node."""
        return {name: getattr(self, name) for name in LIMITS}


LIMITS = tuple(p.name for p in parameters_of(LimitParameters))
"""The names of all limits."""


@dataclass(frozen=True)
class LimitKind:
    """A limit that a contract may name, with the parameters that bound its derivatives.

    `moves` is what it limits: `linear` or `angular` fields of a twist, or `joints`. With `per_tick` it is
    a displacement in one tick instead of a speed.
    """

    speed: str
    acceleration: str
    jerk: str
    moves: str
    per_tick: bool = False


LIMIT_KINDS: Mapping[str, LimitKind] = {
    speed: LimitKind(
        speed, f"max_{name}_accel_{unit}_s2", f"max_{name}_jerk_{unit}_s3", moves, per_tick
    )
    for speed, name, unit, moves, per_tick in (
        ("max_forward_m_s", "forward", "m", "linear", False),
        ("max_yaw_rad_s", "yaw", "rad", "angular", False),
        ("max_translation_m", "translation", "m", "linear", True),
        ("max_rotation_rad", "rotation", "rad", "angular", True),
        ("max_joint_rad_s", "joint", "rad", "joints", False),
    )
}
"""The limits that a contract may name."""


Resume = Literal["in_simulation", "always", "never"]


@dataclass(frozen=True)
class PolicyParameters(LimitParameters):
    """The parameters of `policy_node`. The tick rate is not among them: the checkpoint holds it."""

    checkpoint: str = file_path("", "The policy's .safetensors file. By default the project's.")
    actor: str = param("", ACTOR_HELP)
    spec: str = file_path("", "Episodes, or a checkpoint, of the robot that an actor is for.")
    instruction: Instruction = ""
    contract: ContractPath = ""
    device: str = param("cpu", "Torch device of the network, such as cpu or cuda.")
    engine: EngineName = param(
        "auto", "What runs the network. auto takes openvino on a CPU and torch elsewhere."
    )
    precision: Precision = param(
        "float32", "Precision of the network. bfloat16 is faster on a CPU, and 0.4 % off."
    )
    execution: str = param(NEWEST, EXECUTION_HELP)
    threads: int = param(
        1, "CPU threads that run the network. Another number rounds sums differently.", minimum=1
    )
    autostart: Autostart = True
    bond_heartbeat_period: BondHeartbeatPeriod = 0.25
    lockstep: bool = param(
        False, "Tick once for each complete observation. This is for simulators that wait."
    )
    start_on_instruction: bool = param(
        True,
        "Whether the robot moves as soon as there is an instruction. If false, it waits for a goal.",
    )
    goal_timeout_s: float = seconds(
        0.0, "Time limit of a goal that has none of its own; 0 for none.", live=True
    )
    preempt_goals: bool = param(
        False,
        "Whether a new goal takes the place of the one in hand. If false, it is refused.",
        live=True,
    )
    max_age_s: float = seconds(
        0.5,
        "Largest accepted age of an observation. Otherwise the robot stands still.",
        positive=True,
        maximum=LONGEST_AGE_S,
        live=True,
    )
    stop_after_s: float = seconds(
        2.0,
        "Time without good observations before a stop. It lasts until the memory is reset, the "
        "instruction changes, or the node is activated again.",
        live=True,
    )
    e_stop_rearm: EStopRearm = True
    e_stop_timeout_s: EStopTimeout = 0.0
    command_rate_hz: float = param(
        30.0,
        "How often a command is sent again until the next tick. 0 sends each command once.",
        unit="Hz",
        minimum=0,
        maximum=200,
    )
    lifespan_ticks: float = param(
        1.5,
        "How long a command is sent again if no tick follows. Then the robot is stopped.",
        unit="ticks",
        minimum=1,
        maximum=100,
    )
    cmd_vel_stamped: StampedBaseCommands = True
    snapshot_path: str = file_path(
        "policy_memory.npz",
        "File that the memory is saved to and restored from. snapshot_memory and restore_memory use it.",
    )
    recovery_path: str = file_path(
        "",
        "File that keeps the memory while an episode runs. A process that is started again after a crash "
        "goes on with it.",
    )
    recovery_period_s: float = seconds(
        0.0, "Time between writes of recovery_path; 0 for every tick."
    )
    recovery_max_age_s: float = seconds(
        30.0,
        "Largest age of a recovery_path that is used. With an older one the memory is empty.",
        positive=True,
    )
    resume_after_crash: Resume = param(
        "in_simulation",
        "Go on after a crash. Otherwise the robot stands still until the service rearm. in_simulation "
        "goes on in lockstep and with the contract of the simulated robot alone.",
    )


ProbeOverRos = Literal["live", "erase"]
"""The probes of `ttm evaluate --probe` that a robot over ROS 2 knows, too."""


@dataclass(frozen=True)
class SimParameters(NodeParameters):
    """The parameters of `sim_node`."""

    env: str = param(
        KITCHEN,
        "Gymnasium ID of the environment. A module may stand before it, as in my_package:MyEnv-v0.",
    )
    task: str = param(
        "",
        "Task of the environment. By default the one of the instruction, or the environment's "
        "first. The simulated kitchen has: "
        + "; ".join(f"{name} ({task.description})" for name, task in TASKS.items())
        + ".",
    )
    instruction: str = param(
        "", "Run only initial states that ask for this. By default each has one of its own."
    )
    episodes: int = param(1, "Number of episodes. The node exits after the last one.", minimum=1)
    first_seed: int = param(0, "Number of the first initial state.", minimum=0)
    gap: int = param(
        -1, "Ticks for which a memory task hides its cue; -1 draws them.", unit="ticks", minimum=-1
    )
    probe: ProbeOverRos = param(
        "live",
        "What is done to the policy's memory. erase empties it once, when the robot may act first.",
    )
    vary: str = param("", "What varies, as in `ttm evaluate`: 1, or light=2 latency=1.")
    max_ticks: int = param(
        0, "Length limit of an episode; 0 for the task's own.", unit="ticks", minimum=0
    )
    out: str = file_path(
        "", "Folder for result.json and actions.npz. result.json is as that of `ttm evaluate`."
    )
    video: str = file_path("", "Path of a film of the first episode, .mp4 or .webp.")
    contract: ContractPath = ""
    lockstep: bool = param(
        False,
        "Wait for the command of each observation. The parameter of policy_node must be the same.",
    )
    driver: Literal["policy", "person"] = param(
        "policy",
        "Who drives. For a person, scenes go on until an episode is recorded, or the services next_scene "
        "or same_scene begin another one. lockstep must be false.",
    )
    rate: float = param(
        0.0, "Simulated seconds a second; 0: as fast as possible in lockstep, else 1.", minimum=0
    )
    command_delay_s: float = seconds(
        0.0,
        "How late the robot carries out its commands. The policy does not know of it.",
        maximum=LONGEST_DELAY_S,
    )
    cmd_vel_stamped: StampedBaseCommands = True
    policy_node: str = param(
        "policy_node", "Name of the node whose memory is reset before each episode."
    )
    recorder: str = param(
        "recorder_node", "Name of the recorder after whose episodes the scene changes."
    )
    startup_timeout_s: float = seconds(
        120.0, "Longest wait for the policy, in wall time.", positive=True
    )
    command_timeout_s: float = seconds(
        30.0, "Longest wait for a command in lockstep, in wall time.", positive=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.driver == "person" and self.lockstep:
            raise UserError("a person cannot drive while lockstep is true; set it to false")

    @property
    def condition(self) -> Condition:
        """The gap, the probe, the delay and what varies, as an evaluation reports them."""
        gap = None if self.gap < 0 else self.gap
        return Condition(gap, self.probe, delay_s=self.command_delay_s, vary=self.vary)


@dataclass(frozen=True)
class RecorderParameters(NodeParameters):
    """The parameters of `recorder_node`."""

    folder: str = file_path(
        "episodes", "Folder of the episodes. Numbers go on after those that are there."
    )
    contract: ContractPath = ""
    spec: SpecSource = ""
    rate_hz: ControlRate = 0.0
    instruction: Instruction = ""
    jpeg_quality: int = param(
        0,
        "Quality of stored frames as JPEGs; 0 stores them without loss.",
        minimum=0,
        maximum=MOST_JPEG_QUALITY,
    )
    countdown_s: float = seconds(3.0, "Time between start and the first tick.")
    preroll_s: float = seconds(0.0, "How much of the time before the start is recorded too.")
    max_delay_s: float = seconds(
        0.3, "Longest time that a message takes to arrive. Ticks are written so much later."
    )
    min_fresh: float = param(
        0.9,
        "Smallest portion of ticks with new messages of every input. Episodes with fewer are "
        "refused; 0 keeps all.",
        minimum=0,
        maximum=1,
    )
    cmd_vel_stamped: StampedBaseCommands = True
    simulator: str = param(
        "",
        "Name of the simulated robot that begins its scene again for each episode. Empty for none.",
    )
    keys: bool = param(False, "Take keys from the terminal. ? lists them.")
    autostart: Autostart = True
    bond_heartbeat_period: BondHeartbeatPeriod = 0.25


@dataclass(frozen=True)
class DrivingParameters(LimitParameters):
    """What `teleop_node` and `web_node` share, by which a person drives."""

    contract: ContractPath = ""
    spec: SpecSource = ""
    rate_hz: ControlRate = 0.0
    policy: str = param(
        "", "Name of the policy node in whose place the person drives. Empty for none."
    )
    max_age_s: float = seconds(
        0.5,
        "Largest age of what measures the joints and the gripper. Otherwise the robot stands still.",
        positive=True,
        maximum=LONGEST_AGE_S,
    )
    e_stop_rearm: EStopRearm = True
    e_stop_timeout_s: EStopTimeout = 0.0
    cmd_vel_stamped: StampedBaseCommands = True


TeleopDevice = Literal["keyboard", "gamepad", "pose", "leader"]
"""What a person may drive with."""


@dataclass(frozen=True)
class TeleopParameters(DrivingParameters):
    """The parameters of `teleop_node`."""

    source: TeleopDevice = param(
        "keyboard",
        "What the person drives with. A pose is that of a tracked hand, a leader is an arm.",
    )
    joystick: str = param(
        "/dev/input/js0",
        "Device of a gamepad of this computer. It is published on the topic `joy` while nobody else "
        "does. Empty for none.",
    )
    controls: str = file_path(
        "",
        "YAML file that says which control drives which value of the action. The node prints them.",
    )
    recorder: str = param(
        "", "Name of the recorder that space, f, d and u on the keyboard call. Empty for none."
    )


@dataclass(frozen=True)
class WebParameters(DrivingParameters):
    """The parameters of `web_node`."""

    folder: str = file_path("episodes", "Folder of the episodes that the page lists.")
    recorder: str = param("recorder_node", "Name of the recorder that the page starts and stops.")
    simulator: str = param(
        "", "Name of the simulated robot, whose scenes the page changes. Empty for none."
    )
    host: str = param(
        "127.0.0.1",
        "Address at which the page is served. 0.0.0.0 serves the whole network, without encryption.",
    )
    port: int = param(8700, "Port of the page; 0 takes one that is free.", minimum=0, maximum=65535)
    token: str = param(
        "", "Secret part of the page's address, of letters, digits, - and _. By default a new one."
    )
    page_timeout_s: float = seconds(
        0.5,
        "Longest silence of the page that drives. Then the robot stops, and another page may drive.",
        positive=True,
    )


PARAMETERS: Mapping[str, type[NodeParameters]] = {
    "policy_node": PolicyParameters,
    "sim_node": SimParameters,
    "recorder_node": RecorderParameters,
    "teleop_node": TeleopParameters,
    "web_node": WebParameters,
}
"""Name of each node -> its parameters."""


def main(_: Sequence[str] = ()) -> None:
    """Print the tables of `ros2_ws/docs/parameters.md`. What several nodes share stands once."""
    tables: tuple[tuple[str, type[NodeParameters], type[NodeParameters] | None], ...] = (
        ("Limits of `policy_node`, `teleop_node` and `web_node`", LimitParameters, None),
        ("`policy_node`", PolicyParameters, LimitParameters),
        ("`teleop_node` and `web_node`", DrivingParameters, LimitParameters),
        ("`teleop_node`", TeleopParameters, DrivingParameters),
        ("`web_node`", WebParameters, DrivingParameters),
        ("`recorder_node`", RecorderParameters, None),
        ("`sim_node`", SimParameters, None),
    )
    for title, kind, shared in tables:
        print(f"{title}:\n\n| parameter | default | range | meaning |\n|---|---|---|---|")
        for each in parameters_of(kind):
            if shared is None or each not in parameters_of(shared):
                default = f"{each.default_text} {each.about.unit}".strip()
                summary = each.about.help.split(". ")[0].rstrip(".")
                print(f"| `{each.name}` | {default} | {each.range_text} | {summary} |")
        print()


if __name__ == "__main__":
    main()
