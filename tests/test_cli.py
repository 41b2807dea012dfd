"""The `ttm` command: help, exit codes, and errors in one line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from errno import ENOSPC
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path
from textwrap import fill

import numpy as np
import pytest
from safetensors.numpy import save_file

from ttm.datasets import EpisodeWriter
from ttm.policy import PRESETS, CameraSpec, Policy, PolicySpec, save_checkpoint
from ttm.policy.files import write_json
from ttm.policy.spec import read_header
from ttm.sim.condition import KITCHEN
from ttm.sim.environment import inspect_env
from ttm.sim.evaluation import EvaluateCommand
from ttm.sim.kitchen.spec import SPEC
from ttm.training import cli
from ttm.training.robot.robot import RobotCommand

Run = Callable[..., tuple[int, str]]
MOST_OPTIONS = 360


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `ttm` and gives the exit code and stderr."""

    def run(*words: object) -> tuple[int, str]:
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as stop:  # raised by tyro
            code = int(stop.code or 0)
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def episode(tmp_path: Path) -> Path:
    """A folder with one short recorded episode of the simulated robot."""
    folder = tmp_path / "episodes"
    folder.mkdir()
    record(folder / "one.hdf5", SPEC)
    return folder


@pytest.fixture
def foreign_checkpoint(tmp_path: Path) -> Path:
    """An untrained policy for a robot with one camera, which is larger."""
    path = tmp_path / "foreign.safetensors"
    spec = replace(SPEC, robot="other_arm", cameras=(CameraSpec("front", 96, 96),))
    save_checkpoint(path, Policy(spec, PRESETS["tiny"]), {})
    return path


def record(path: Path, spec: PolicySpec, ticks: int = 4) -> None:
    rng = np.random.default_rng(0)
    with EpisodeWriter(path, spec) as writer:
        for tick in range(ticks):
            observation = {
                c.name: rng.integers(0, 256, (c.height, c.width, 3), np.uint8) for c in spec.cameras
            }
            observation |= {v.name: np.zeros(v.size, np.float32) for v in spec.proprioception}
            writer.append(
                observation, np.zeros(spec.action_size, np.float32), timestamp_s=0.2 * tick
            )
        writer.finish(instruction="wave", task="wave", success=True, seed=0)


def assert_one_line_error(result: tuple[int, str], *words: str) -> None:
    code, err = result
    errors = [line for line in err.splitlines() if line.startswith("ttm: error: ")]
    assert code == 2, err
    assert len(errors) == 1, err
    assert err.rstrip().endswith(errors[0]), "nothing after the error's own line"
    assert "Traceback" not in err
    for word in words:
        assert word in errors[0]


def test_truncated_episode(run: Run, episode: Path, tmp_path: Path) -> None:
    file = episode / "one.hdf5"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert_one_line_error(
        run("train", "--data", episode, "--out", tmp_path / "run", "--steps", 1), "one.hdf5"
    )


def test_wrong_camera(run: Run, episode: Path, tmp_path: Path) -> None:
    result = run(
        "train", "--data", episode, "--out", tmp_path / "run", "--steps", 1, "--cameras", "ceiling"
    )
    assert_one_line_error(result, "ceiling", "head", "wrist")


def test_missing_data(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.hdf5"
    assert_one_line_error(
        run("train", "--data", missing, "--out", tmp_path / "run"), "nowhere.hdf5"
    )
    assert_one_line_error(run("data", "show", missing), "nowhere.hdf5")
    assert_one_line_error(run("data", "check", missing), "nowhere.hdf5")


def test_missing_checkpoint(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.safetensors"
    result = run(
        "evaluate", "--checkpoint", missing, "--out", tmp_path, "--workers", 1, "--episodes", 1
    )
    assert_one_line_error(result, "nowhere.safetensors")


def test_checkpoint_of_another_robot_in_evaluation(
    run: Run, foreign_checkpoint: Path, tmp_path: Path
) -> None:
    result = run(
        "evaluate",
        "--checkpoint",
        foreign_checkpoint,
        "--out",
        tmp_path,
        "--workers",
        2,
        "--episodes",
        2,
    )
    assert_one_line_error(result, "other_arm", "fetch_kitchen")


def test_checkpoint_of_another_robot_in_collection(
    run: Run, foreign_checkpoint: Path, tmp_path: Path
) -> None:
    result = run(
        "collect", "--policy", foreign_checkpoint, "--episodes", 1, "--out", tmp_path / "out"
    )
    assert_one_line_error(result, "other_arm", "fetch_kitchen")


def test_checkpoint_of_another_robot_in_fine_tuning(
    run: Run, episode: Path, foreign_checkpoint: Path, tmp_path: Path
) -> None:
    result = run(
        "train",
        "--data",
        episode,
        "--out",
        tmp_path / "run",
        "--init",
        foreign_checkpoint,
        "--steps",
        1,
    )
    assert_one_line_error(result)


def test_checkpoint_of_another_robot_on_the_robot(run: Run, foreign_checkpoint: Path) -> None:
    pytest.importorskip("rclpy")
    assert_one_line_error(
        run("robot", "--sim", "--checkpoint", foreign_checkpoint), "other_arm", "fetch_kitchen"
    )


def test_a_damaged_header_on_the_robot(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("rclpy")
    path = tmp_path / "damaged.safetensors"
    header = read_header("shipped")
    for config in ("[]", "{"):
        save_file({"x": np.zeros(1)}, path, {**header, "config": config})
        result = run("robot", "--sim", "--checkpoint", path)
        assert_one_line_error(result, "damaged.safetensors", "is damaged")


def test_text_instead_of_a_checkpoint(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.safetensors"
    path.write_text("not a checkpoint")
    result = run(
        "evaluate", "--checkpoint", path, "--out", tmp_path, "--workers", 1, "--episodes", 1
    )
    assert_one_line_error(result, "notes.safetensors")


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--episodes", -1, "--out", "o"),
        ("evaluate", "--against", "nowhere", "--out", "o"),
        ("collect", "--episodes", 0, "--out", "o"),
        ("demo", "--demonstrations", 1),
        ("demo", "--checkpoint", "expert"),
        ("demo", "--episodes", 2, "--ros-episodes", 3),
        ("train", "--data", "d", "--out", "o", "--window", 0),
    ],
)
def test_impossible_options(run: Run, words: tuple[object, ...]) -> None:
    assert_one_line_error(run(*words))


def outs() -> Iterator[tuple[str, ...]]:
    """Commands that take --out, with what else they need."""
    data = ("--data", "d")
    yield from (
        ("train", *data),
        ("evaluate",),
        ("collect",),
        ("compare", "a"),
        ("export", "--checkpoint", "shipped"),
        ("demo",),
        ("record", "--sim"),
    )
    yield from (("show", "memory", "--episode", "e"),)
    yield from (("study", "suite"), ("data", "split", "d"), ("data", "merge", "d"))
    yield from (
        ("data", "filter", "d"),
        ("data", "pack", "d", "--image-size", "8"),
        ("data", "play", "d"),
    )


@pytest.mark.parametrize("words", list(outs()), ids="-".join)
def test_an_out_that_cannot_be_is_told_before_anything_starts(
    run: Run, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert_one_line_error(run(*words, "--out", tmp_path / "file" / "below"), "file is no folder")
    monkeypatch.setattr("os.access", lambda *_: False)  # as root may write everywhere
    assert_one_line_error(run(*words, "--out", tmp_path / "new"), "is not writable", "--out")


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "flops", "--json"),
        ("study", "minigrid", "--plot"),
        ("data", "show", "d", "--sheet"),
        ("robot", "--sim", "--video"),
        ("data", "convert", "d"),
        ("data", "bags", "--contract", "c.yaml", "d"),
    ],
    ids="-".join,
)
def test_any_file_that_cannot_be_written_is_told_before_anything_starts(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A benchmark of minutes would end without its figures."""
    (tmp_path / "file").touch()
    option = words[-1] if words[-1].startswith("--") else "TO"
    told = f"file is no folder; give another {option}"
    assert_one_line_error(run(*words, tmp_path / "file" / "below"), told)


def test_a_disk_that_fills_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    target = tmp_path / "one.json"

    def work(command: object) -> int:
        write_json(target, {})
        return 0

    monkeypatch.setattr("ttm.sim.evaluation.EvaluateCommand.run", work)
    told = f"cannot write {target} (No space left on device); make space"
    assert_one_line_error(run("evaluate", "--out", tmp_path), told)
    assert list(tmp_path.iterdir()) == []


def test_unknown_options_and_commands_exit_with_2(run: Run) -> None:
    assert run("evaluate", "--epsiodes", "3")[0] == 2
    assert run("xyz")[0] == 2


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("trian", "--data", "d"), "train"), (("data", "shwo"), "data show"), (("benhc",), "bench")],
)
def test_a_command_with_a_slip_is_answered_by_the_one_most_like_it(
    run: Run, words: tuple[str, ...], meant: str
) -> None:
    assert_one_line_error(run(*words), f"; did you mean {meant}?")


def test_several_tasks_are_evaluated_by_one_command(run: Run, tmp_path: Path) -> None:
    tasks = ("pick", "open_drawer")
    assert run("evaluate", "--task", *tasks, "--episodes", 0, "--out", tmp_path)[0] == 0
    lines = (tmp_path / "instructions.txt").read_text("utf-8").splitlines()
    asked = {line.split("\t")[0] for line in lines}
    assert asked == {text for task in tasks for text in inspect_env(KITCHEN).tasks[task]}


def test_ctrl_c_exits_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: EvaluateCommand) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(EvaluateCommand, "run", interrupted)
    code, err = run("evaluate", "--out", "o")
    assert code == 130
    assert "Traceback" not in err


def test_help_of_every_command_shows_few_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Of `ttm` itself and of groups, too."""
    counts = {}
    for command in ("", *cli.GROUPS, *cli.COMMANDS):
        with pytest.raises(SystemExit) as stop:
            cli.main([*command.split(), "--help"])
        assert stop.value.code in (0, None)
        printed = capsys.readouterr().out
        assert f"usage: {f'ttm {command}'.rstrip()}" in printed
        assert "noqa" not in printed, f"a comment of the source is a description of {command}"
        for name in cli.COMMANDS:
            group, _, rest = name.partition(" ")
            assert command != group or rest in printed
        counts[command] = len(re.findall(r"^\W --[a-z]", printed, re.M))
    assert sum(counts.values()) <= MOST_OPTIONS, sorted(counts.items(), key=lambda c: -c[1])[:8]


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["evaluate", "-h"]])
def test_paragraphs_of_help_fill_the_terminal_and_end_between_words(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a line of the docstring begins with a bracket. Lines to copy are left as they are."""
    text = cli.DESCRIPTION if len(words) == 1 else cli._load("", cli.COMMANDS[words[0]]).__doc__
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        cli.main(words)
    printed = capsys.readouterr().out
    for paragraph in cleandoc(text or "").split("\n\n"):
        if "\n  ttm " not in paragraph:
            assert fill(" ".join(paragraph.split()), 60, break_on_hyphens=False) in printed
    examples = [line for line in (text or "").splitlines() if line.strip().startswith("ttm ")]
    assert all(f"\n  {line.strip()}\n" in printed for line in examples if line[:1] == " ")


def test_a_script_of_completion_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--tyro-print-completion", "bash"])
    assert max(map(len, capsys.readouterr().out.splitlines())) > 200


def test_help_and_version_load_no_heavy_library() -> None:
    """Loading one would take seconds."""
    heavy = (
        "torch",
        "mujoco",
        "h5py",
        "rclpy",
        "matplotlib",
        "sentence_transformers",
        "lightning_fabric",
    )
    code = f"""
import sys
from ttm.training import cli
code = cli.main(["--version"])
try:
    cli.main(["--help"])
except SystemExit:
    print(code, [name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.strip().splitlines()
    assert (lines[0], lines[-1]) == (f"ttm {version('ttm-policy-stack')}", "0 []")


def test_commands_load_what_takes_long_only_where_they_need_it() -> None:
    """`ttm robot` runs as long as its nodes, and a mistake in an option should be told at once.

    A simulator films without charts.
    """
    code = """
import sys
import ttm.training.robot.robot
import ttm.sim.video
assert not {"torch", "matplotlib"} & set(sys.modules)
import ttm.training.train
assert not {"lightning_fabric", "torch._dynamo"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_of_a_training_are_told_how_to_wait_before_torch_is_imported() -> None:
    code = """
import os, sys
from ttm.training import cli
def look(module):
    sys.exit(f"{os.environ.get('OMP_WAIT_POLICY')} {'torch' in sys.modules}")
cli.import_module = look
cli.main(["train", "--help"])
"""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stderr == "passive False\n"


def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError("No module named 'gymnasium_robotics'", name="gymnasium_robotics")

    monkeypatch.setattr(cli, "import_module", missing)
    assert_one_line_error(
        run("collect", "--out", "o"), "gymnasium_robotics", "ttm-policy-stack[kitchen]"
    )


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ttm.training.cli",
        "data",
        "show",
        str(tmp_path / "nowhere.hdf5"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert_one_line_error((done.returncode, done.stderr), "nowhere.hdf5")


@pytest.mark.parametrize("words", [["--help"], ["data", "show", "--help"]])
def test_a_reader_that_has_seen_enough_ends_it_quietly(words: list[str]) -> None:
    """As in `ttm --help | head -n 1`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ttm.training.cli", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (cli.EXIT_NO_READER, "")


def test_ctrl_c_while_the_command_is_imported_is_quiet(tmp_path: Path) -> None:
    """What `ttm` imports first is replaced by a module in which Ctrl-C comes."""
    (tmp_path / "tyro.py").write_text("raise KeyboardInterrupt")
    code = "import sys; from ttm.training import main; sys.exit(main())"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (cli.EXIT_INTERRUPTED, "ttm: interrupted\n")


def test_a_node_that_a_signal_ended_gives_the_exit_code_of_a_shell(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RobotCommand, "run", lambda self: -signal.SIGKILL)
    assert run("robot")[0] == 137
