"""`ttm robot`: drive a robot with a policy in closed loop over ROS 2, simulated or real.

The options of `ttm robot` and `ttm record` are made from the parameters of the ROS nodes. Everything
that needs no node is checked before one starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from tyro.conf import Suppress, arg

from ttm.policy.errors import UserError
from ttm.policy.execution import make_execution
from ttm.policy.spec import SHIPPED, checkpoint_path, damaged, read_checkpoint_spec, read_header
from ttm.sim.environment import choose_task, inspect_env, require_memory_tasks
from ttm.training.config_file import config_path, read_config
from ttm.training.robot.processes import (
    require_rclpy,
    running_nodes,
    simulation_environment,
    start_after_crash,
    wait_for_episodes,
)
from ttm_policy.parameters import (
    DeclaredParameter,
    NodeParameters,
    PolicyParameters,
    RecorderParameters,
    SimParameters,
    TeleopParameters,
    WebParameters,
    parameters_of,
)

Parameters = TypeVar("Parameters", bound=NodeParameters)

WITHOUT_OPTION: Mapping[type[NodeParameters], tuple[str, ...]] = {
    PolicyParameters: ("autostart", "lockstep"),
    SimParameters: ("driver", "lockstep", "policy_node", "recorder"),
    RecorderParameters: ("autostart", "keys", "simulator"),
    TeleopParameters: ("source", "recorder"),
    WebParameters: ("folder", "recorder", "simulator"),
}
"""The parameters that the commands set, so that no option is made for them."""

IN_FILE_ALONE = frozenset({
    "bond_heartbeat_period", "precision", "start_on_instruction", "goal_timeout_s", "preempt_goals",
    "stop_after_s", "e_stop_rearm", "e_stop_timeout_s", "command_rate_hz", "lifespan_ticks",
    "snapshot_path", "recovery_path", "recovery_period_s", "recovery_max_age_s", "resume_after_crash",
    "preroll_s", "countdown_s", "max_delay_s", "min_fresh", "jpeg_quality", "token", "joystick",
    "engine", "rate", "startup_timeout_s", "command_timeout_s",
})  # fmt: skip
"""Parameters, beside the limits of acceleration and jerk, that only the file of --config sets."""
RENAMED = {"first_seed": "seed", "folder": "out"}
"""Parameter -> option, where the names differ."""


def option_of(parameter: str) -> str:
    """Return the name of the option (with underscores) that sets a parameter."""
    return RENAMED.get(parameter, parameter)


def in_file_alone(parameter: str) -> bool:
    """Whether only the file of --config sets a parameter, since few robots need another value."""
    return parameter in IN_FILE_ALONE or "_accel_" in parameter or "_jerk_" in parameter


def options_class(
    own: type[Any],
    node_parameters: type[NodeParameters],
    others: Mapping[str, type[NodeParameters]],
) -> Any:
    """Return a dataclass of options: those of `own`, one for each parameter that has one, and --config.

    A parameter that several nodes have becomes one option. others: the parameters of nodes that only an
    option such as --sim starts, by that option.
    """
    nodes = {"": _with_option(node_parameters)}
    nodes |= {flag: _with_option(kind) for flag, kind in others.items()}
    options: list[Any] = []  # fields for `make_dataclass`
    for name in dict.fromkeys(name for parameters in nodes.values() for name in parameters):
        found = {flag: parameters[name] for flag, parameters in nodes.items() if name in parameters}
        parameter = next(iter(found.values()))
        texts: dict[str, str] = {}
        for flag, each in found.items():  # texts of nodes that differ stand one after another
            start = f"With {flag}: " if flag else ""
            end = f" In {each.about.unit}." if each.about.unit else ""
            texts.setdefault(each.about.help, start + each.about.help + end)
        kind: Any = Path if parameter.about.is_path else parameter.type
        default: Any = Path(parameter.default) if parameter.about.is_path else parameter.default
        if parameter.choices:
            kind = Literal[parameter.choices]
        if parameter.default == "":  # which stands for None
            kind, default = kind if parameter.choices else kind | None, None
        about = arg(help=" ".join(texts.values()))
        alone = in_file_alone(name)
        hint: Any = Annotated[kind, about, Suppress] if alone else Annotated[kind, about]
        options.append((name, hint, field(default=default)))
    about = arg(
        help="A YAML file of options, with lines such as `max-yaw-rad-s: 0.5`. Options of the command line "
        "count more. ros2_ws/docs/parameters.md has the parameters that stand there alone."
    )
    options.append(("config", Annotated[Path | None, about], field(default=None)))
    methods = {"defaults": classmethod(lambda cls, words: _with_config(cls(), words))}
    return make_dataclass("_AllOptions", options, bases=(own,), namespace=methods, frozen=True)


def _with_config(command: Any, words: Sequence[str]) -> Any:
    """Return `command` with the values of the file of --config that `words` name; None if they name none."""
    path = config_path(words)
    if path is None:
        return None
    kinds = {name.replace("_", "-"): kind for name, kind in get_type_hints(type(command)).items()}
    del kinds["config"]
    values = read_config(path, kinds).items()
    return replace(command, **{name.replace("-", "_"): value for name, value in values})


def check_options(command: object, *kinds: type[NodeParameters]) -> None:
    """Raise `UserError` that names the first option of `command` whose value is out of range."""
    for node_parameters in kinds:
        for name, parameter in _with_option(node_parameters).items():
            parameter.check(_value(command, name), label=_label(name))


def require_started(
    command: object,
    started: Collection[type[NodeParameters]],
    others: Mapping[type[NodeParameters], str],
) -> None:
    """Raise `UserError` if an option of `command` that no started node has is not at its default.

    others: parameters of nodes that need not be started -> their node, and what starts it.
    """
    known = {name for kind in started for name in _with_option(kind)}
    for kind, remedy in others.items():
        for name, parameter in _with_option(kind).items():
            if name not in known and _value(command, name) != parameter.default:
                raise UserError(f"{_label(name)} is one of {remedy}")


def require_contract(path: Path | None) -> None:
    """Raise `UserError` if there is no file at the path of a contract. None stands for the shipped one."""
    if path is not None and not path.is_file():
        raise UserError(f"no contract at {path}; give the path of a YAML file")


def read_options(command: object, node_parameters: type[Parameters], **others: Any) -> Parameters:
    """Return the parameters of a node as `command` sets them; `others` have no option."""
    values = {
        parameter.name: _value(command, name)
        for name, parameter in _with_option(node_parameters).items()
    }
    return node_parameters(**values, **others)


def _with_option(node_parameters: type[NodeParameters]) -> dict[str, DeclaredParameter]:
    """Return the parameters that have an option, by the name of the option."""
    return {
        option_of(parameter.name): parameter
        for parameter in parameters_of(node_parameters)
        if parameter.name not in WITHOUT_OPTION[node_parameters]
    }


def _label(option: str) -> str:
    """Return what messages call an option, which has dashes only if the command line has it."""
    name = option.replace("_", "-")
    return name if in_file_alone(option) else f"--{name}"


def _value(command: object, option: str) -> Any:
    """Return an option's value as a node takes it: "" for None, and text for paths."""
    value = getattr(command, option)
    if value is None:
        return ""
    return str(value) if isinstance(value, Path) else value


Watch = Callable[["subprocess.Popen[bytes]"], object]
"""Is shown the policy's process again and again while it runs."""


def drive_robot(policy: PolicyParameters, *, respawn: bool = False) -> int:
    """Run `policy_node` until it ends, and return its exit code.

    respawn: start it again after a crash, with the memory that it had. Raises `UserError` before any
    process starts if ROS or the checkpoint are missing.
    """
    require_rclpy()
    with (
        _with_files(policy, respawn) as given,
        running_nodes({"policy_node": asdict(given)}, os.environ) as nodes,
    ):
        while nodes["policy_node"].wait() and respawn:
            respawn = start_after_crash(nodes, "policy_node", os.environ)
        return nodes["policy_node"].wait()


def drive_simulation(
    policy: PolicyParameters,
    sim: SimParameters,
    *,
    respawn: bool = False,
    watch: Watch = lambda _: None,
) -> int:
    """Run both nodes until the last episode, and return the exit code.

    respawn: start the policy again after a crash, with the memory that it had. Raises `UserError`
    before any process starts if ROS, checkpoint, environment or task are missing or do not fit together.
    """
    require_rclpy()
    with _with_files(policy, respawn) as given:
        facts = inspect_env(sim.env)
        if not given.actor:
            spec = read_checkpoint_spec(given.checkpoint)
            spec.require_robot(facts.spec, theirs="the simulated robot", ours=given.checkpoint)
            try:
                chunk = json.loads(read_header(given.checkpoint)["config"]).get("chunk", 1)
            except (KeyError, ValueError, AttributeError) as error:
                raise damaged(given.checkpoint, error) from error
            make_execution(policy.execution, chunk, spec.action_size)
        task = choose_task(facts.name, facts.tasks, sim.task, sim.instruction, label="--task")
        if option := sim.condition.needs_memory_task:
            require_memory_tasks(sim.env, [task], option)
        environment = simulation_environment()
        parameters = {
            "policy_node": {**asdict(given), "use_sim_time": True},
            "sim_node": asdict(replace(sim, task=task, vary=facts.variant(sim.vary.split()))),
        }
        with running_nodes(parameters, environment) as nodes:

            def look() -> None:
                watch(nodes["policy_node"])
                if respawn:
                    start_after_crash(nodes, "policy_node", environment)

            return wait_for_episodes(nodes, look)


@contextmanager
def _with_files(policy: PolicyParameters, respawn: bool) -> Iterator[PolicyParameters]:
    """Yield the parameters with the absolute path of the checkpoint, and to respawn a file for the memory."""
    if not policy.actor:
        path = checkpoint_path(policy.checkpoint or SHIPPED).resolve()
        policy = replace(policy, checkpoint=str(path))
    with tempfile.TemporaryDirectory(prefix="ttm_robot_") as folder:
        if respawn and not policy.recovery_path:
            policy = replace(policy, recovery_path=str(Path(folder) / "memory.npz"))
        yield policy


@dataclass(frozen=True)
class _CommandOptions:
    """The options that are no parameters of the nodes."""

    sim: bool = False
    """Start the simulated robot too."""
    free_running: bool = False
    """With --sim: time runs on while the policy computes, as on a robot. Otherwise the simulator
    waits for each command, and every run of an initial state is the same."""
    respawn: bool = False
    """Start the policy again after a crash, with the memory that it had."""


_AllOptions: Any = options_class(_CommandOptions, PolicyParameters, {"--sim": SimParameters})


@dataclass(frozen=True)
class RobotCommand(_AllOptions):
    """Drive a robot with a policy over ROS 2, keeping its memory from tick to tick.

    With --sim the robot is the simulated one, in a process of its own behind the same topics. Without
    it only the policy's node starts, for the robot whose topics --contract names. Ctrl-C stops the
    robot and all processes.

    For example:
      ttm robot --sim --instruction "pick up the red can"
      ttm robot --sim --task open_drawer --episodes 20 --out runs/ros
      ttm robot --checkpoint runs/mine/best.safetensors --contract my_robot.yaml
    """

    def run(self) -> int:
        """Start the nodes, wait for their end, and return the exit code."""
        check_options(self, PolicyParameters, SimParameters)
        require_contract(self.contract)
        if self.free_running and not self.sim:
            raise UserError("--free-running is one of the simulated robot; add --sim")
        started = (PolicyParameters, SimParameters) if self.sim else (PolicyParameters,)
        require_started(self, started, {SimParameters: "the simulated robot; add --sim"})

        lockstep = self.sim and not self.free_running
        policy = read_options(self, PolicyParameters, lockstep=lockstep)
        if not self.sim:
            return drive_robot(policy, respawn=self.respawn)
        sim = read_options(self, SimParameters, lockstep=lockstep)
        return drive_simulation(policy, sim, respawn=self.respawn)
