"""The campaign of abuse: a running policy in every way of `abuse_kinds.KINDS`, and presses meanwhile.

A `policy_node` drives a made-up robot by the shipped policy, each node in a process of its own. The times
count on an idle machine alone. The kind `nothing` shows what the machine itself takes.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from abuse_kinds import KINDS, Kind, Scene, run_attack
from e_stop_campaign import PAUSE_S, PressedRobot, what_followed
from fault_campaign import REMEDIES, START_S
from node_process import SERVER, NodeProcess
from rclpy.qos import QoSProfile
from std_msgs.msg import Bool

from ttm.policy import UserError, load_checkpoint
from ttm.policy.errors import options, require_at_least
from ttm.policy.spec import SHIPPED, checkpoint_path
from ttm.training.bench.common import resident_mb
from ttm_policy.contract import default_contract, load_contract

BAR_MS = 20.0
"""The longest time from a press until zero has arrived, at the 99th percentile."""
MOST_GROWN_MB = 50.0
"""How much more memory a node may have after one kind of abuse than before it."""
MOST_PEAK_MB = 300.0
"""How much more memory it may have meanwhile: the largest messages have 100 MB, and DDS copies them."""
ANSWERS_S = 30.0
"""The longest wait for an answer to a press; more is none."""
HOLD_S = 0.4
"""For how long the button stays pressed after the answer: two ticks, in which nothing may move the robot."""
RECOVERS_S = 30.0
"""The longest time until the policy drives again after the abuse."""
PATIENCE_S = 10.0
"""The longest wait for anything else."""
EXPOSED_S = 1.0
"""How long the abuse goes on before each press: five ticks."""
DRIVES_S = 0.5
"""A robot drives that was commanded to move so short ago."""
ENDS_S = 10.0
"""The longest wait for a node to end, or for a page."""
ASKS = {**REMEDIES, "standing still": "reset_memory", "waiting for an instruction": "reset_memory"}
"""What the message of a node says that does not drive -> the service that lets it."""
TRANSITIONS = {"inactive": 3, "not configured": 1}


@dataclass
class Press:
    """What followed a press."""

    took_s: float | None
    """Until zero had arrived on all motion topics, and nothing else came after; None for never."""
    moved_after: int
    """Commands that move the robot, after the first zero and before the release."""
    drove: bool
    """Whether the robot was driving when it was pressed."""


@dataclass
class Outcome:
    """What one kind of abuse has shown."""

    kind: str
    presses: list[Press] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Processes that have ended although they should not, or not as they should."""
    recovered_s: float | None = None
    grown_mb: float = 0.0
    peak_mb: float = 0.0
    acts: int = 0
    """What attackers have done: messages sent and services called."""
    log_mb: float = 0.0
    tracebacks: int = 0
    problems: list[str] = field(default_factory=list)

    def judge(self, bar_ms: float, most_grown_mb: float = MOST_GROWN_MB) -> None:
        """Say what is not as it should be."""
        say = self.problems.append
        took_ms = [press.took_s * 1e3 for press in self.presses if press.took_s is not None]
        if self.ended:
            say(f"ended: {', '.join(self.ended)}")
        if len(took_ms) < len(self.presses) or not self.presses:
            say(f"{len(took_ms)} of {len(self.presses)} presses were answered")
        if took_ms and np.percentile(took_ms, 99) > bar_ms:
            say(f"late: {max(took_ms):.0f} ms")
        if moved := sum(press.moved_after for press in self.presses):
            say(f"moved {moved} times after zero")
        if self.recovered_s is None:
            say("does not drive again")
        if self.grown_mb > most_grown_mb:
            say(f"memory grown by {self.grown_mb:.0f} MB")
        if self.peak_mb > MOST_PEAK_MB:
            say(f"memory larger by {self.peak_mb:.0f} MB meanwhile")

    @property
    def left_behind(self) -> bool:
        """Whether the policy's process is not what it was before, so that it would count for other kinds."""
        return bool(self.ended) or self.recovered_s is None or self.grown_mb > MOST_GROWN_MB

    def watch_memory(self, process: int, before_mb: float) -> None:
        """Note how much memory a process has gained, and at most had; the worst of several counts."""
        self.grown_mb = max(self.grown_mb, (resident_mb(process) or before_mb) - before_mb)
        self.peak_mb = max(self.peak_mb, (_peak_mb(process) or before_mb) - before_mb)

    def line(self) -> str:
        """Return what happened in one line."""
        took = [f"{p.took_s * 1e3:.1f}" if p.took_s is not None else "never" for p in self.presses]
        back = "-" if self.recovered_s is None else f"{self.recovered_s:.1f}"
        drove = sum(press.drove for press in self.presses)
        facts = (
            f"{', '.join(took)} ms ({drove} driving), back in {back} s, memory {self.grown_mb:+.0f} MB "
            f"(peak {self.peak_mb:+.0f}), {self.acts} acts, log {self.log_mb:.1f} MB"
        )
        words = f"   <- {'; '.join(self.problems)}" if self.problems else ""
        return f"{'FAIL' if self.problems else 'ok  '} {self.kind:38} {facts}{words}"


class AbusedRobot(PressedRobot):
    """A robot with a button that gives up when its policy ends."""

    wait_s = PATIENCE_S
    command_qos = QoSProfile(depth=2000)
    """Deeper than that of a robot, so that no flood of others hides what the policy sends."""

    def __init__(self, scene: Scene):
        super().__init__(load_contract(scene.contract), scene.spec)
        self._scene = scene

    @property
    def _policy_has_ended(self) -> bool:
        return any(process.exit_code is not None for process in self.processes)

    def measured_press(self, resumed_s: Callable[[], float], may_stand: bool) -> Press:
        """Press the button, and return what followed.

        resumed_s: when the node went on, before which it cannot answer. may_stand: see `Kind`.
        """
        drove, stood = time.time() - self.moved_at_s < DRIVES_S, self.stands
        pressed_s = self.begin_press()
        until_s = time.monotonic() + (HOLD_S if may_stand and stood else ANSWERS_S)
        while (took_s := what_followed(self.commands, self.motion, pressed_s)[0]) is None:
            if time.monotonic() > until_s or self._policy_has_ended:
                break
            time.sleep(0.005)
        time.sleep(HOLD_S)
        took_s, moved = what_followed(self.commands, self.motion, pressed_s, resumed_s())
        if may_stand and stood and not any(command.moves for command in self.commands):
            took_s = 0.0  # whenever the node sent zero once more
        return Press(took_s, moved, drove)

    def recover(self, limit_s: float = RECOVERS_S) -> float | None:
        """Do what the node asks for until it drives, and return how long that took; None if it does not."""
        begun_s, begun_wall_s = time.monotonic(), time.time()
        self.repair()
        self._button.publish(Bool(data=False))
        self.instruct(self._scene.instructions[0])
        asked_s = begun_s - 0.5
        while time.monotonic() - begun_s < limit_s:
            if self.moved_at_s > begun_wall_s and self.runs:
                return time.monotonic() - begun_s
            if time.monotonic() - asked_s > 1.0:  # so that a message from before is not heeded
                try:
                    self._do_what_it_asks()
                except TimeoutError:
                    if self._policy_has_ended:
                        return None
                asked_s = time.monotonic()
            time.sleep(0.02)
        return None

    def insist(self, service: str, limit_s: float = RECOVERS_S) -> str:
        """Call a service until it succeeds; return an empty text, or what it last said."""
        until_s, answer = time.monotonic() + limit_s, self.ask(service)
        while not answer.success and time.monotonic() < until_s:
            time.sleep(0.2)
            answer = self.ask(service)
        return "" if answer.success else f"{service}: {answer.message}"

    def _do_what_it_asks(self) -> None:
        message = self.message
        for words, service in ASKS.items():
            if words in message:
                self.call(service)
        for words, number in TRANSITIONS.items():
            if message.startswith(words):
                self.transition(number)


class Stage:
    """The place of abuse: a robot, the policy that drives it, attackers, and nodes beside them."""

    def __init__(self, folder: Path, checkpoint: Path):
        self._folder, self._checkpoint = folder, checkpoint
        policy, _ = load_checkpoint(checkpoint)
        contract = folder / "robot.yaml"
        contract.write_text(yaml.safe_dump(_contract()))
        instructions = tuple(list(policy.known_instructions)[:2])
        self.scene = Scene(contract, policy.spec, folder / "memory.npz", instructions)
        self.robot = AbusedRobot(self.scene)
        self.resumed_s = 0.0
        self.acts = 0
        self._started = 0
        self._beside: dict[str, tuple[NodeProcess, float]] = {}
        """The nodes beside the policy's, and their memory in MB before the abuse."""
        self._attackers: list[Any] = []
        self.broken: list[str] = []
        self.policy = self._new_policy()

    def _new_policy(self) -> NodeProcess:
        self.robot.message = ""
        self.policy = self._node("policy_node", 0)
        self.robot.processes = [self.policy]
        self.robot.instruct(self.scene.instructions[0])
        return self.policy

    def _node(self, name: str, number: int, **parameters: Any) -> NodeProcess:
        self._started += 1
        folder = self._folder / f"{name}_{self._started}"
        values: dict[str, Any] = {"contract": str(self.scene.contract), "use_sim_time": True}
        if name == "policy_node":
            memory = self.scene.snapshot if not number else folder / "memory.npz"
            values |= {
                "checkpoint": str(self._checkpoint),
                "instruction": self.scene.instructions[0],
                "snapshot_path": str(memory),
                "recovery_path": str(folder / "recovery.npz"),
            }
        else:
            values |= {"spec": str(self._checkpoint), "folder": str(folder / "episodes")}
        if name == "recorder_node":
            values["countdown_s"] = 0.0
        module = "web.web_node" if name == "web_node" else name
        return NodeProcess(module, folder, values | parameters)

    def start(self, name: str, **parameters: Any) -> NodeProcess:
        """See `abuse_kinds.Place`. The policy's double drives when this returns, and a recorder records."""
        robot, drivers = self.robot, self.robot.count_publishers("cmd_vel")
        process = self._node(name, 1, **parameters)
        signs = {
            "policy_node": lambda: robot.count_publishers("cmd_vel") > drivers,
            "recorder_node": lambda: "recorder_node" in robot.get_node_names(),
            "web_node": lambda: "web_node" in robot.get_node_names(),
        }
        robot.wait(lambda: process.exit_code is not None or signs[name](), name, START_S)
        if name == "recorder_node":
            self._record()
        self._beside[name] = process, resident_mb(process.pid) or 0.0
        _forget_peak(process.pid)
        return process

    def _record(self) -> None:
        """Let the recorder begin an episode."""
        try:
            problem = self.robot.insist("recorder_node/start")
        except TimeoutError as error:
            problem = str(error)
        if problem:
            self.broken.append(f"it does not record: {problem}")

    def attack(self, name: str, page: tuple[int, str] = (0, "")) -> Callable[[], object]:
        """See `abuse_kinds.Place`. The attack has begun when this returns."""
        done, over = SERVER.Value("Q", 0), SERVER.Event()
        arguments = (name, replace(self.scene, page=page), done, over)
        attacker = SERVER.Process(target=run_attack, args=arguments, daemon=True)
        attacker.start()
        self._attackers.append(attacker)
        until_s = time.monotonic() + START_S
        while not done.value and attacker.exitcode is None and time.monotonic() < until_s:
            time.sleep(0.01)

        def end() -> None:
            over.set()
            attacker.join(ENDS_S)
            if attacker.exitcode is None:
                attacker.kill()
                attacker.join()
            elif attacker.exitcode:
                self.broken.append(f"the attacker itself has failed ({attacker.exitcode})")
            self.acts += done.value
            if not done.value:
                self.broken.append("the attacker has done nothing")

        return end

    def wait_for_page(self, port: int, token: str) -> None:
        """See `abuse_kinds.Place`."""
        until_s = time.monotonic() + ENDS_S
        while True:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/{token}/", timeout=2
                ) as answer:
                    if answer.status == 200:
                        return
            except OSError as error:
                if time.monotonic() > until_s:
                    self.broken.append(f"the page is not served: {error}")
                    return
            time.sleep(0.1)

    def abuse(self, name: str, kind: Kind, presses: int, rng: random.Random) -> Outcome:
        """Run one kind, and let the policy drive again."""
        outcome = Outcome(name)
        robot = self.robot
        robot.forget()
        self.resumed_s, self.acts, self.broken = 0.0, 0, []
        before_mb, logged = resident_mb(self.policy.pid) or 0.0, len(self.policy.output)
        _forget_peak(self.policy.pid)
        ends: list[Callable[[], object]] = []
        try:
            self._press_often(outcome, kind, presses, rng, ends)
        except TimeoutError as error:
            outcome.problems.append(str(error))
        finally:
            self._end(ends)
        if self.policy.exit_code is None:
            outcome.recovered_s = robot.recover()
        self._end_beside(outcome)
        if self.policy.exit_code is not None:
            outcome.ended.append(f"policy_node with {self.policy.exit_code}")
        else:
            outcome.watch_memory(self.policy.pid, before_mb)
        output = self.policy.output[logged:]
        outcome.log_mb += len(output) * 1e-6
        outcome.tracebacks += output.count("Traceback")
        outcome.acts = self.acts
        outcome.problems += self.broken
        return outcome

    def _press_often(
        self, outcome: Outcome, kind: Kind, presses: int, rng: random.Random, ends: list[Any]
    ) -> None:
        robot = self.robot
        while len(outcome.presses) < presses and self.policy.exit_code is None:
            if not ends or kind.anew:
                self._end(ends)
                if robot.recover() is None:
                    return
                end = kind.begin(self)
                ends.append(end if end is not None else lambda: None)
            time.sleep(EXPOSED_S)
            self._wait_for_drive(EXPOSED_S)
            time.sleep(rng.uniform(*PAUSE_S))
            press = robot.measured_press(lambda: self.resumed_s, kind.may_stand)
            outcome.presses.append(press)
            if press.took_s is None:
                return
            try:
                robot.release()
            except TimeoutError:  # under this abuse; it is given time without
                self._end(ends)

    def _wait_for_drive(self, limit_s: float) -> None:
        """Wait until the robot drives, as far as the abuse lets it."""
        until_s, since_s = time.monotonic() + limit_s, time.time()
        while self.robot.moved_at_s < since_s and time.monotonic() < until_s:
            time.sleep(0.01)

    def _end(self, ends: list[Callable[[], object]]) -> None:
        while ends:
            ends.pop()()
        self.robot.repair()

    def _end_beside(self, outcome: Outcome) -> None:
        """See that the nodes beside the policy's are as they should be, and end them."""
        for name, (process, before_mb) in self._beside.items():
            if process.exit_code is None and name == "recorder_node":
                with suppress(TimeoutError):  # then the start is in vain, too
                    self.robot.ask("recorder_node/discard")
                self._record()
            if process.exit_code is None:
                outcome.watch_memory(process.pid, before_mb)
            outcome.log_mb += len(process.output) * 1e-6
            outcome.tracebacks += process.output.count("Traceback")
            died = process.exit_code is not None
            code = _ended(process)
            if died or code != 0:
                outcome.ended.append(f"{name} beside with {code}: {_last_line(process.output)}")
        self._beside.clear()

    def replace_policy(self) -> None:
        """Start a new policy, so that what one kind has left behind counts for no other one."""
        _ended(self.policy)
        self._new_policy()
        if self.robot.recover(START_S) is None:
            raise SystemExit(
                f"a new policy_node does not drive: {self.robot.message}\n{self.policy.output}"
            )

    def close(self) -> list[str]:
        """End all processes, and return what was wrong with that."""
        process, robot = self.policy, self.robot
        robot.processes = []
        problems = []
        if (code := _ended(process)) != 0:
            problems.append(f"policy_node ended with {code} after SIGTERM")
        if not robot.stands:
            problems.append("zero was not the last command of policy_node")
        robot.close()
        return problems


def _ended(process: NodeProcess) -> int | None:
    """End a node, if need be by force, and return its exit code."""
    process.send(signal.SIGCONT)
    process.send(signal.SIGTERM)
    until_s = time.monotonic() + ENDS_S
    while process.exit_code is None and time.monotonic() < until_s:
        time.sleep(0.02)
    process.send(signal.SIGKILL)
    return process.wait()


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1][:200] if lines else ""


def _contract() -> dict[str, Any]:
    """The simulated robot's contract, with one compressed camera, and room for publishers of strangers."""
    data: dict[str, Any] = yaml.safe_load(default_contract().read_text())
    head = data["observations"]["head"]
    head["type"], head["resize"] = "sensor_msgs/CompressedImage", True
    for source in (*data["observations"].values(), data["executed_action"]):
        source["publishers"] = 1000
    return data


def _forget_peak(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


def _peak_mb(process: int) -> float | None:
    """Return the largest resident memory since `_forget_peak`."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1e3 if found else None


def summary(outcomes: Sequence[Outcome], problems: Sequence[str], bar_ms: float) -> dict[str, Any]:
    """Return the figures of all kinds, with `holds`: whether every bar is met."""
    took_ms = [p.took_s * 1e3 for o in outcomes for p in o.presses if p.took_s is not None]
    p99 = float(np.percentile(took_ms, 99)) if took_ms else None
    failed = {outcome.kind: outcome.problems for outcome in outcomes if outcome.problems}
    return {
        "kinds": sum(outcome.kind != "nothing" for outcome in outcomes),
        "failed": failed,
        "presses": sum(len(outcome.presses) for outcome in outcomes),
        "answered": len(took_ms),
        "median_ms": statistics.median(took_ms) if took_ms else None,
        "p99_ms": p99,
        "worst_ms": max(took_ms, default=None),
        "bar_ms": bar_ms,
        "moved_after_zero": sum(p.moved_after for o in outcomes for p in o.presses),
        "processes_ended": [name for outcome in outcomes for name in outcome.ended],
        "at_the_end": list(problems),
        "load": os.getloadavg()[0],
        "holds": not failed and not problems and p99 is not None and p99 <= bar_ms,
    }


@dataclass(frozen=True)
class AbuseCampaign:
    """Abuse a running policy in every way of the table, and press the emergency stop meanwhile.

    For each kind the table's function begins the abuse; the emergency stop is pressed at random moments; and
    when the abuse has ended, the policy has to drive again. One line a kind says what happened, and the last
    output is a summary as JSON. The exit code is 1 if a process has ended that should not, if the policy did
    not drive again, if the 99th percentile of the times from a press until zero had arrived for good is above
    --bar-ms, if a command that moves the robot came after that zero, or if a node's memory has grown.
    """

    only: tuple[str, ...] = ()
    """These kinds alone."""
    list: bool = False
    """List the kinds, and end."""
    presses: int = 3
    """Presses in each kind."""
    bar_ms: float = BAR_MS
    """For a busy machine: more than 20."""
    seed: int = 0
    """Seed of the pauses before presses."""
    json: Path | None = None
    """Also write what happened in each kind to this file."""
    keep: Path | None = None
    """Keep the nodes' logs in this folder."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "presses"))
        if unknown := [name for name in self.only if name not in KINDS]:
            raise UserError(f"no kind {unknown[0]!r}; --list names them")

    def run(self) -> int:
        """Run the kinds that were asked for, print the summary, and return the exit code."""
        if self.list:
            print("\n".join(KINDS))
            return 0
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        folder = Path(tempfile.mkdtemp(prefix="ttm_abuse_"))
        os.environ["ROS_LOG_DIR"] = str(folder / "ros")
        try:
            figures = self._abuse(folder)
        finally:
            if self.keep:
                shutil.copytree(folder, self.keep, dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(figures, indent=1))
        return int(not figures["holds"])

    def _abuse(self, folder: Path) -> dict[str, Any]:
        rng, outcomes = random.Random(self.seed), []
        stage = Stage(folder, checkpoint_path(SHIPPED).resolve())
        try:
            if stage.robot.recover(START_S) is None:
                raise SystemExit(
                    f"the policy never drives: {stage.robot.message}\n{stage.policy.output}"
                )
            for name in self.only or KINDS:
                kind = KINDS[name]
                outcome = stage.abuse(name, kind, self.presses, rng)
                outcome.judge(self.bar_ms, MOST_GROWN_MB + kind.keeps_mb)
                outcomes.append(outcome)
                print(outcome.line(), flush=True)
                if outcome.left_behind:
                    stage.replace_policy()
        finally:
            problems = stage.close()
        figures = summary(outcomes, problems, self.bar_ms)
        if self.json:
            each = [asdict(outcome) for outcome in outcomes]
            self.json.write_text(json.dumps({**figures, "each": each}, indent=1))
        return figures
