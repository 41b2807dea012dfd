"""Kills the recorder again and again, or fills its disk, and looks what is left of its episodes."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ttm.datasets.check.check import check_dataset
from ttm.policy.errors import UserError
from ttm.training.bench.record.nodes import (
    camera_parameters,
    episode_folder,
    recorder_parameters,
    write_contract,
)
from ttm.training.bench.record.options import BenchRecordOptions
from ttm.training.bench.report import Report
from ttm.training.robot.processes import running_nodes, simulation_environment

MAX_DELAY_S = 0.1
WHOLE_BEFORE_FULL = 2
"""So many episodes are ended before one goes on until the disk is full."""
WAIT_S = 300.0
"""The longest wait for the recorder to tell something."""
LOOK_S = 0.02


@dataclass
class Run:
    """The recorder at work in a folder, what has it record, and what it has told."""

    folder: Path
    journal: Path
    recorder: subprocess.Popen[bytes]
    load: subprocess.Popen[bytes]
    environment: dict[str, str]

    def told(self, what: str) -> list[str]:
        """Return what the recorder has told: the names of `saved` episodes, `problem` or `refused`."""
        text = self.journal.read_text() if self.journal.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line[what] for line in lines if what in line]

    def files(self, pattern: str) -> set[str]:
        """Return the names of the files in the folder."""
        return {path.name for path in self.folder.glob(pattern)}

    @property
    def lost(self) -> set[str]:
        """The episodes that the recorder has told to be saved, and that are not there."""
        return {Path(path).name for path in self.told("saved")} - self.files("*.hdf5")

    def wait(self, done: Callable[[], bool], problem: str) -> None:
        """Wait for something. Raises `UserError` if it does not come, or the recorder ends."""
        until_s = time.monotonic() + WAIT_S
        while not done():
            if (self.recorder.poll(), self.load.poll()) != (None, None):
                raise UserError("a node has ended; see its messages above")
            if time.monotonic() > until_s:
                raise UserError(f"the recorder {problem}; see its messages above")
            time.sleep(LOOK_S)

    def wait_for_an_episode(self) -> None:
        """Wait until another episode is saved."""
        before = len(self.told("saved"))
        self.wait(lambda: len(self.told("saved")) > before, "saves no episode")

    def kill(self) -> None:
        """Kill the recorder, and wait for its end."""
        self.recorder.kill()
        self.recorder.wait()

    def start_again(self) -> None:
        """Start the recorder with the same parameters."""
        self.recorder = subprocess.Popen(self.recorder.args, env=self.environment)

    def figures(self) -> dict[str, int]:
        """Return what is in the folder."""
        return {
            "whole": len(self.files("*.hdf5")),
            "partial": len(self.files(".*.partial")),
            "damaged": check_dataset(self.folder).num_errors,
            "lost": len(self.lost),
        }


def run_kills(options: BenchRecordOptions, report: Report) -> int:
    """Kill the recorder at random moments.

    Returns 1 if more than the episodes in hand is lost, or a recorder leaves what the one before it left.
    """
    random = np.random.default_rng(options.seed)
    left: list[int] = []
    with _recording(options, endless_after=0) as run:
        for number in range(options.kills):
            if number:
                run.start_again()
            run.wait_for_an_episode()
            time.sleep(random.uniform(0, 2 * (options.episode_s + MAX_DELAY_S)))
            run.kill()
            left.append(len(run.files(".*.partial")))
        found = {"kills": options.kills, "in_hand": sum(map(bool, left)), "most_at_once": max(left)}
        figures = {**found, **run.figures()}
    report.text(
        "{kills} kills, {in_hand} of them with an episode in hand, never more than {most_at_once} at once: "
        "{whole} whole episodes, {damaged} damaged, {lost} lost after they were saved".format(
            **figures
        )
    )
    return _end(report, figures, max(left) > 1)


def run_fill(options: BenchRecordOptions, report: Report) -> int:
    """Record until the disk is full, and return 1 if more than the episode in hand is lost."""
    with _recording(options, endless_after=WHOLE_BEFORE_FULL) as run:
        run.wait(
            lambda: bool(run.told("problem") or run.told("refused")), "finds space for everything"
        )
        if not run.told(
            "refused"
        ):  # what was recorded is deleted, so that there may be space again
            before = len(run.told("saved"))
            run.wait(
                lambda: len(run.told("saved")) > before or bool(run.told("refused")),
                "does not go on",
            )
        report.text("\n".join(f"the recorder says: {text}" for text in _reasons(run)))
        run.recorder.terminate()
        run.recorder.wait()
        figures = run.figures()
    report.text(
        "{whole} whole episodes, {damaged} damaged, {lost} lost after they were saved, {partial} left in "
        "part".format(**figures)
    )
    return _end(report, figures, bool(figures["partial"]))


def _reasons(run: Run) -> list[str]:
    return list(dict.fromkeys(run.told("problem") + run.told("refused")))


def _end(report: Report, figures: dict[str, int], failed: bool) -> int:
    report.figures |= figures
    report.write()
    return int(failed or bool(figures["damaged"] or figures["lost"]))


@contextmanager
def _recording(options: BenchRecordOptions, *, endless_after: int) -> Iterator[Run]:
    """Start the recorder, and what has it record one episode after the other."""
    with (
        episode_folder(options) as episodes,
        tempfile.TemporaryDirectory(prefix="ttm_bench_") as own,
    ):
        contract, journal = Path(own) / "robot.yaml", Path(own) / "journal.jsonl"
        write_contract(contract, options.cameras)
        recorder = recorder_parameters(options, episodes, contract)
        load = camera_parameters(options, contract)
        nodes = {
            "recorder_node": {**recorder, "max_delay_s": MAX_DELAY_S},
            "sensors.episodes_load": {**load, "out": str(journal), "endless_after": endless_after},
        }
        environment = simulation_environment()
        with running_nodes(nodes, environment) as processes:
            recorder_node, episodes_load = processes.values()
            run = Run(episodes, journal, recorder_node, episodes_load, environment)
            try:
                yield run
            finally:
                processes["recorder_node"] = run.recorder
