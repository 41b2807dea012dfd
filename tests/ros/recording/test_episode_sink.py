"""Writing off the callbacks' thread: whole episodes, failures that are told, and kills at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from geometry_msgs.msg import Twist
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from ttm.datasets import check_dataset, open_dataset
from ttm.datasets.hdf5 import remove_leftovers
from ttm.policy import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec, UserError
from ttm_policy.contract import load_contract
from ttm_policy.recording import episodes as episode_sink
from ttm_policy.recording.episodes import EpisodeSink, GivenSpec
from ttm_policy.recording.matching import Tick

CONTRACT = """
robot: cart
base_frame: base
observations:
  head: {topic: head, type: sensor_msgs/Image}
  joints: {topic: joints, type: sensor_msgs/JointState, fields: [pan]}
executed_action: {topic: done, type: sensor_msgs/JointState, fields: [speed]}
actions:
  base: {topic: cmd_vel, type: geometry_msgs/Twist, fields: [linear.x], limit: max_forward_m_s}
"""
SPEC = PolicySpec(
    "cart",
    (CameraSpec("head", 4, 6),),
    (ProprioceptionSpec("joints", ("pan",)),),
    (ActionPart("base", 1, "m/s", low=-1.0, high=1.0),),
    5.0,
)


@pytest.fixture
def given(tmp_path: Path) -> GivenSpec:
    (tmp_path / "cart.yaml").write_text(CONTRACT)
    return GivenSpec(load_contract(tmp_path / "cart.yaml"), SPEC.rate_hz, SPEC)


def tick_at(number: int, speed: float | None = None) -> Tick[Any]:
    """A tick with serialised messages; the robot reports that it did half of the last command."""
    image = Image(height=4, width=6, encoding="rgb8", step=18)
    image.data.frombytes(np.full((4, 6, 3), number, np.uint8).tobytes())
    speed = (0.5, 0.75)[number % 2] if speed is None else speed
    command = Twist()
    command.linear.x = speed
    return Tick(
        {
            "head": serialize_message(image),
            "joints": JointState(name=["pan"], position=[float(number)]),
            "done": JointState(name=["speed"], position=[speed / 2 if number else 0.0]),
        },
        {"head": number * 200_000_000, "joints": 0, "done": 0},
        {
            "cmd_vel": serialize_message(command),
            "driver": serialize_message(String(data="person" if number == 1 else "policy")),
        },
    )


NEWEST = tick_at(0).observation


@pytest.fixture
def sink(tmp_path: Path, given: GivenSpec) -> EpisodeSink:
    return EpisodeSink(tmp_path / "out", given)


def test_ticks_become_episodes_that_number_on(sink, tmp_path):
    for length in (3, 2):
        sink.begin(NEWEST)
        for number in range(5):
            sink.put(tick_at(number))
        sink.finish(length, "wave", True)
        assert sink.results.get(timeout=180).num_samples == length
    sink.close()
    first, second = open_dataset(tmp_path / "out")
    assert [first.path.name, second.path.name] == ["episode_00000.hdf5", "episode_00001.hdf5"]
    assert first.frames("head")[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert first.proprioception("joints")[:, 0].tolist() == [0, 1, 2]
    assert first.actions[:, 0].tolist() == [0.5, 0.75, 0.5]
    assert first.executed_actions[:, 0].tolist() == [0.375, 0.25, 0.5], "reported at the next tick"
    assert first.interventions.tolist() == [False, True, False]
    assert check_dataset(tmp_path / "out").num_errors == 0


def test_a_bad_value_ends_the_episode_and_the_next_one_is_recorded(sink, tmp_path):
    sink.begin(NEWEST)
    sink.put(tick_at(0))
    sink.put(tick_at(1, speed=3.0))
    sink.put(tick_at(2))
    sink.finish(3, "wave", None)
    sink.begin(NEWEST)
    for number in range(2):
        sink.put(tick_at(number))
    sink.finish(2, "wave", None)
    failed, written = sink.results.get(timeout=180), sink.results.get(timeout=180)
    assert "action 'base'[0] is 3.0; the spec wants -1 to 1" in failed.problem
    assert failed.number == 1
    assert written.path.name == "episode_00000.hdf5"
    sink.close()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["episode_00000.hdf5"]


def test_what_is_in_hand_at_the_end_is_deleted(sink, tmp_path):
    sink.begin(NEWEST)
    sink.put(tick_at(0))
    sink.close()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_machine_that_is_too_slow_is_told(sink, monkeypatch):
    monkeypatch.setattr(episode_sink, "MOST_WAITING", 3)
    released = threading.Event()
    monkeypatch.setattr(EpisodeSink, "_write", lambda self, tick: released.wait(180))
    sink.begin(NEWEST)
    for number in range(3):
        sink.put(tick_at(number))
    with pytest.raises(UserError, match="3 ticks wait to be written"):
        [sink.put(tick_at(number)) for number in range(3, 12)]
    released.set()
    sink.close()


def test_a_folder_without_space_is_told(sink, monkeypatch):
    monkeypatch.setattr(episode_sink, "LEAST_FREE_BYTES", 2**62)
    with pytest.raises(UserError, match="MiB are free in"):
        sink.begin(NEWEST)
    sink.close()


PROGRAM = """
import itertools, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_episode_sink import NEWEST, SPEC, EpisodeSink, GivenSpec, load_contract, tick_at
from ttm_policy.recording import episodes as episode_sink

episode_sink.FLUSH_S = 0.01
folder = Path(sys.argv[1])
given = GivenSpec(load_contract(folder / "cart.yaml"), SPEC.rate_hz, SPEC)
sink = EpisodeSink(folder / "out", given)


def tell():
    while True:
        print(sink.results.get().path.name, flush=True)


threading.Thread(target=tell, daemon=True).start()
for _ in itertools.count():
    sink.begin(NEWEST)
    length = 20 + len(list(folder.glob("out/*.hdf5")))  # so that not all are copies of one
    for number in range(length):
        while sink.waiting > 50:
            time.sleep(0.001)
        sink.put(tick_at(number))
    sink.finish(length, "wave", True)
"""


def test_kills_at_random_moments_cost_only_the_episode_in_hand(given, tmp_path):
    random, told = np.random.default_rng(0), 0
    for _ in range(2):
        program = [sys.executable, "-c", PROGRAM, str(tmp_path), str(Path(__file__).parent)]
        recorder = subprocess.Popen(program, stdout=subprocess.PIPE, env=os.environ)
        assert recorder.stdout is not None
        names = [recorder.stdout.readline()]  # it runs
        time.sleep(random.uniform(0.0, 0.3))
        recorder.send_signal(signal.SIGKILL)
        names += recorder.stdout.readlines()
        recorder.wait()
        told += len(names)
        whole = sorted((tmp_path / "out").glob("*.hdf5"))
        assert names[-1].decode().strip() in [path.name for path in whole[-2:]]
        assert told <= len(whole) <= told + 1, "one may be complete that was not told"
        told = len(whole)
        left = sorted((tmp_path / "out").glob(".*.partial"))
        assert len(left) <= 1
        assert remove_leftovers(tmp_path / "out") == left
    assert len(open_dataset(tmp_path / "out")) == told
    assert all(fault.is_warning for fault in check_dataset(tmp_path / "out").faults)
