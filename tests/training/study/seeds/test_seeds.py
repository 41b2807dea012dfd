"""`ttm study seeds`: activities by their definition, equal rows, rank correlation, and the command."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import seeds_table
import torch
from filelock import FileLock
from torch import Tensor, nn

from ttm.datasets import EpisodeWriter
from ttm.policy import CoreConfig, TemporalCore
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.sim.kitchen.spec import SPEC
from ttm.training import cli
from ttm.training.sequence_model import SequenceModel, num_parameters
from ttm.training.study import activity, common, minigrid, seeds
from ttm.training.study.activity import (
    PHASES,
    Episodes,
    Streams,
    average_precision,
    phases_of,
)
from ttm.training.study.common import FeedbackConfig
from ttm.training.study.listops import ListopsTask
from ttm.training.study.seeds import (
    TABLES,
    WIDTH,
    AblatedBottleneckConfig,
    ActivityTask,
    ChunkTask,
    CopyTask,
    ExpressionTask,
    MeanPoolingConfig,
    Results,
    StudySeedsCommand,
    SuiteTask,
    TextTask,
    rank_correlation,
)


def phase_names(
    opening: list[float], hand: list[list[float]], base: list[list[float]]
) -> list[str]:
    return [PHASES[i] for i in phases_of(np.array(opening), np.array(hand), np.array(base))]


def test_phases_follow_from_how_the_robot_has_just_moved() -> None:
    still, forward, back = [0.0, 0.0], [0.3, 0.0], [-0.1, 0.0]
    near, far, high = [0.8, 0.0, 0.9], [0.9, 0.0, 0.9], [0.9, 0.0, 1.0]
    opening = [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 1.0]
    hand = [near, near, far, far, high, high, high, high]
    base = [still, forward, still, still, still, back, forward, still]
    expected = ["wait", "drive", "reach", "close", "lift", "pull", "carry", "open"]
    assert phase_names(opening, hand, base) == expected


def episodes() -> Episodes:
    """Six episodes of two skills and four ticks; the last of each is held out, the maps hold the tick."""
    ticks = torch.arange(24)
    return Episodes(
        ticks.view(24, 1, 1, 1, 1).half(),
        ticks % 4 % 2,
        torch.tensor([0, 1, 0, 1, 0, 1]),
        torch.full((6,), 4),
        torch.tensor([False] * 4 + [True] * 2),
    )


def test_a_stream_joins_episodes_of_its_part_and_says_which_skills_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activity, "FEWEST_TICKS", 1)
    streams = Streams(episodes(), ["pick", "pull"], ticks=10)
    phases = ["pick: wait", "pick: close", "pull: wait", "pull: close"]
    assert streams.names == [*phases, "pick again", "pull again"]
    ticks, wanted = streams.draw(20, False, torch.Generator().manual_seed(0))
    assert ticks.max() < 16
    assert streams.draw(20, True, torch.Generator())[0].min() >= 16
    skill = ticks // 4 % 2  # (B, T)
    joint = 2 * skill + ticks % 2
    assert torch.equal(wanted[..., :4].argmax(dim=2), joint)
    assert (wanted[..., :4].sum(dim=2) == 1).all()
    for of, again in zip(skill.tolist(), wanted[..., 4:].bool().tolist(), strict=True):
        for tick in range(10):
            repeats = of[tick] in of[: 4 * (tick // 4)]
            assert again[tick] == [repeats and of[tick] == each for each in (0, 1)]


def test_average_precision_is_the_mean_precision_at_the_positives() -> None:
    positive = np.array([0, 1, 0, 1])
    assert average_precision(np.array([0.9, 0.8, 0.7, 0.6]), positive) == pytest.approx(
        (1 / 2 + 2 / 4) / 2
    )
    assert average_precision(np.array([0.1, 0.8, 0.2, 0.6]), positive) == 1


def test_mean_pooling_sees_its_window_alone() -> None:
    torch.manual_seed(0)
    config = MeanPoolingConfig(window=3, process_size=2, num_layers=1, mlp_size=8)
    mean = config.build(8, 4).eval()
    tokens = torch.randn(1, 6, 4, 8)
    other = torch.cat([torch.randn(1, 3, 4, 8), tokens[:, 3:]], dim=1)
    assert torch.equal(mean(tokens)[0][:, -1], mean(other)[0][:, -1])
    assert not torch.equal(mean(tokens)[0][:, -2], mean(other)[0][:, -2])


def test_rank_correlation_is_spearmans_with_an_interval_over_the_seeds() -> None:
    exact = rank_correlation([[1.0], [2.0], [3.0], [5.0]], [10, 30, 20, 40])
    assert exact is not None
    assert exact == pytest.approx((0.8, 0.8, 0.8))  # 1 - 6 * 2 / (4 * 15)
    noisy = rank_correlation([[0.0, 2.0], [1.0, 3.0], [9.0, 9.0]], [1, 2, 3])
    assert noisy is not None
    assert noisy.value == 1 > noisy.low
    assert rank_correlation([[1.0], [2.0]], [1, 2]) is None


def record(folder: Path, seed: int = 0) -> None:
    """Record four episodes of eleven ticks for each of two skills, one of the four held out."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for number in range(8):
        with EpisodeWriter(folder / f"{number}.hdf5", SPEC) as writer:
            for tick in range(11):
                seen = {
                    c.name: rng.integers(0, 256, (c.height, c.width, 3), np.uint8)
                    for c in SPEC.cameras
                }
                seen |= {p.name: np.zeros(p.size, np.float32) for p in SPEC.proprioception}
                writer.append(seen, np.zeros(SPEC.action_size, np.float32), timestamp_s=tick / 5)
            task, split = ("pick", "pull")[number % 2], "valid" if number > 5 else "train"
            embedding = np.zeros(384, np.float32)
            writer.finish(instruction="do it", task=task, embedding=embedding, split=split)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ticks": 6, "batch_size": 1, "evaluated": 8}.items():
        monkeypatch.setattr(ActivityTask, name, value)
    monkeypatch.setattr(activity, "FEWEST_TICKS", 1)
    monkeypatch.setattr(seeds, "DRAWS", 50)


def test_a_note_is_no_wider_than_its_picture() -> None:
    assert max(len(table.note) for table in TABLES.values()) < 125  # letters of 8 pt on 7.5 inches


def test_rows_of_a_table_are_of_equal_size() -> None:
    """Within 2 %, but for Hourglass, whose tables vary the size, and for other numbers of tokens."""
    task = ActivityTask.__new__(ActivityTask)
    task.streams = Streams.__new__(Streams)
    task.streams.episodes = episodes()
    for table in TABLES.values():
        if table.task not in (ActivityTask, ExpressionTask, CopyTask):
            continue
        of = task if table.task is ActivityTask else table.task.__new__(table.task)
        for row in table.rows:
            made = of.sized(row)
            assert made.given is not None
            inputs = made.given.get("tokens", 1)
            reference = AblatedBottleneckConfig(1, 64, 2, 10, 10, mlp_size=128)
            wanted = TokenTuringConfig(mlp_size=128) if of is task else reference
            count = num_parameters(made.config, WIDTH, inputs)
            assert count == pytest.approx(num_parameters(wanted, WIDTH, inputs), rel=0.02), row.name


def test_rows_of_babyai_are_of_equal_size() -> None:
    rows = [seeds.BabyTask.__new__(seeds.BabyTask).sized(row) for row in TABLES["tlb-babyai"].rows]
    whole, *others = (num_parameters(row.config, seeds.BabyTask.width) for row in rows)
    assert others == pytest.approx([whole] * 2, rel=0.02)


def test_committed_results_are_of_these_tables() -> None:
    """A title, a note, a row or a figure of the paper that changes must change on the page, too."""
    files = sorted((Path(seeds.__file__).parent / "results" / "seeds").glob("*.json"))
    assert sorted(path.stem for path in files) == sorted(TABLES)
    for path in files:
        found, table = seeds.Results.read(path), TABLES[path.stem]
        assert (found.title, found.source, found.note) == (table.title, table.source, table.note)
        rows = [(row["row"], row["paper"]) for row in found.rows]
        assert rows == [(row.name, row.paper) for row in table.rows], path.stem
        assert found.title in path.with_suffix(".svg").read_text(encoding="utf-8")


def model_of(config: CoreConfig) -> TemporalCore:
    torch.manual_seed(0)
    return config.build(8, 1).eval()


@pytest.mark.parametrize("config", [FeedbackConfig(1), FeedbackConfig(2, num_layers=1)])
def test_the_feedback_transformer_is_causal_and_goes_on_from_its_state(config: CoreConfig) -> None:
    model, tokens = model_of(config), torch.randn(2, 7, 1, 8)
    outputs, state = model(tokens)
    first, middle = model(tokens[:, :3])
    rest, end = model(tokens[:, 3:], middle)
    torch.testing.assert_close(torch.cat([first, rest], dim=1), outputs, rtol=0, atol=1e-5)
    torch.testing.assert_close(end["memory"], state["memory"], rtol=0, atol=1e-5)
    other = torch.cat([torch.randn(2, 1, 1, 8), tokens[:, 1:]], dim=1)
    assert (model(other)[0][:, -1] - outputs[:, -1]).abs().max() > 1e-4


@pytest.mark.parametrize(("past", "top_down"), [(True, True), (False, True), (True, False)])
def test_an_ablated_bottleneck_lacks_its_part(past: bool, top_down: bool) -> None:
    sizes = {"process_size": 1, "num_latents": 3, "chunk_size": 2, "mlp_size": 8}
    model = model_of(AblatedBottleneckConfig(**sizes, past=past, top_down=top_down))
    tokens = torch.randn(1, 7, 1, 8)
    outputs, _ = model(tokens)
    state, stepped = model.initial_state(1), []
    for now in tokens.unbind(dim=1):
        output, state = model.step(now, state)
        stepped.append(output)
    torch.testing.assert_close(torch.stack(stepped, dim=1), outputs, rtol=0, atol=1e-5)
    other = torch.cat([torch.randn(1, 4, 1, 8), tokens[:, 4:]], dim=1)  # of earlier chunks
    assert torch.equal(model(other)[0][:, -1], outputs[:, -1]) is not past
    assert len(model.crossings) == 2 * top_down


def command(name: str) -> StudySeedsCommand:
    return StudySeedsCommand(name, steps=1)


def test_the_text_is_there_and_its_end_is_held_out() -> None:
    task = TextTask(command("hourglass-depth"))
    text = torch.cat([task.text, task.end])
    assert len(text) > 100_000
    assert bytes(text.tolist()).startswith(b'The "assert"')
    assert len(task.end) == round(len(text) / 10)
    task.text, task.ticks, task.batch_size = torch.arange(50), 7, 2000
    symbols, following = task.batch(torch.Generator().manual_seed(0))
    assert torch.equal(following, symbols + 1)
    assert {int(first) for first in symbols[:, 0]} == set(range(43))


def test_bits_are_those_of_the_scores() -> None:
    class Even(SequenceModel):
        """Predicts 8 of the bytes with equal probability, and no others."""

        def __init__(self) -> None:
            nn.Module.__init__(self)

        def forward(self, symbols: Tensor) -> Tensor:
            scores = torch.tensor([0.0] * 8 + [-torch.inf] * 248)
            return scores.expand(*symbols.shape, 256)

    task = TextTask(command("hourglass-depth"))
    task.end, task.ticks = torch.arange(1000) % 8, 9
    assert task.measured(Even()) == pytest.approx(3)


def test_chunks_repeat_a_letter_and_each_symbol_is_told_before_it_is_seen() -> None:
    task = ChunkTask(command("hourglass-chunks"))
    seen, symbols = task.draw(50, torch.Generator().manual_seed(0))
    chunks = symbols.unflatten(1, (-1, 3))
    assert torch.equal(chunks[..., 0], chunks[..., 2])
    assert (chunks[..., 1] == 4).all()
    assert set(chunks[..., 0].unique().tolist()) == {0, 1, 2, 3}
    assert torch.equal(seen[:, 1:], symbols[:, :-1])
    assert (seen[:, 0] == 5).all()


def test_every_task_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one step of the last row of a table."""
    small = {"samples": 20, "evaluated": 4, "batch_size": 2}
    for name, value in small.items():
        monkeypatch.setattr(ExpressionTask, name, value)
    monkeypatch.setattr(seeds.LongExpressionTask, "samples", 20)
    monkeypatch.setattr(seeds.LongExpressionTask, "bounds", ListopsTask(20, 40))
    monkeypatch.setattr(seeds.LongExpressionTask, "evaluated", 4)
    monkeypatch.setattr(TextTask, "ticks", 12)
    monkeypatch.setattr(TextTask, "held_out", 0.001)
    monkeypatch.setattr(ChunkTask, "evaluated", 2)
    monkeypatch.setattr(seeds.CostTask, "ticks", 12)
    monkeypatch.setattr(common, "HELD_OUT_COPIES", 2)
    monkeypatch.setattr(seeds.BabyTask, "demonstrations", 3)
    monkeypatch.setattr(seeds.BabyTask, "episodes", 1)
    monkeypatch.setattr(minigrid, "SEEDS_A_FILE", 4)
    rolled_out = "ttm.training.study.minigrid_study.roll_out"  # of thousands of ticks
    monkeypatch.setattr(rolled_out, lambda *_: [(True, 5)])
    others = ActivityTask, SuiteTask  # need demonstrations, and have tests of their own
    of_task = {table.task: name for name, table in TABLES.items() if table.task not in others}
    for name in of_task.values():
        monkeypatch.setitem(TABLES, name, replace(TABLES[name], rows=TABLES[name].rows[-1:]))
        made = StudySeedsCommand(name, seeds=(0,), steps=1, out=tmp_path).make()
        assert Results.read(tmp_path / f"{name}.json").rows == made.rows
        (row,) = made.rows
        assert [each["seed"] for each in row["trainings"]] == [0]
        assert row["trainings"][0]["value"] >= 0
        assert 0 < made.cpu_hours < 0.1


def test_the_plain_transformer_sees_everything_and_grows() -> None:
    config = common.PlainTransformerConfig(process_size=1, num_layers=1, num_heads=2, mlp_size=16)
    core, tokens = config.build(8, 3).double(), torch.randn(2, 30, 3, 8, dtype=torch.float64)
    outputs, state = core(tokens)
    stepped, now = [], core.initial_state(2)
    for tick in tokens.unbind(dim=1):
        output, now = core.step(tick, now)
        stepped.append(output)
    torch.testing.assert_close(torch.stack(stepped, dim=1), outputs, rtol=0, atol=1e-12)
    assert state["keys"].shape == (2, 1, 30, 8)
    other = tokens.clone()
    other[:, 0, :, 0] += 1  # not all channels alike, which a normalization takes out
    assert not torch.equal(core(other)[0][:, -1], outputs[:, -1])


def test_the_command_goes_on_where_it_stopped(
    tmp_path: Path, tiny: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "demos", tmp_path / "out"
    record(folder)
    words = ["study", "seeds", "ttm-processor", "--data", str(folder), "--out", str(out)]
    words += ["--steps", "1", "--seeds"]
    assert cli.main([*words, "0"]) == 0
    trainings = out / "trainings"
    before = {path: path.read_bytes() for path in trainings.glob("*.json")}
    assert len(before) == 3
    plot = tmp_path / "plot.svg"
    assert cli.main([*words, "0", "1", "--plot", str(plot)]) == 0
    assert len(list(trainings.glob("*.json"))) == 6
    assert all(path.read_bytes() == data for path, data in before.items())
    found = Results.read(out / "ttm-processor.json")
    assert [row["row"] for row in found.rows] == ["MLP", "Mixer", "Transformer"]
    assert [each["seed"] for each in found.rows[0]["trainings"]] == [0, 1]
    assert found.cpu_hours > 0
    cheapest, *_, dearest = (row["trainings"][0]["gflops"] for row in found.rows)
    assert 0 < cheapest < dearest
    assert "<svg" in plot.read_text()
    assert "the paper, rank" in found.draw()
    unknown = replace(found, rows=[row | {"paper": None} for row in found.rows])
    assert "the paper, rank" not in unknown.draw()
    capsys.readouterr()
    assert cli.main([*words[:3], "--figures", str(out / "ttm-processor.json")]) == 0
    printed = capsys.readouterr().out
    assert "26.34" in printed
    assert "Spearman" in printed
    assert "again" not in printed, "no skill comes again in so short streams"
    each = {"pick: lift": 1.0, "pick again": 0.25, "pull again": 0.5}
    told = [row | {"trainings": [row["trainings"][0] | {"each": each}]} for row in found.rows]
    common.print_results(*replace(found, rows=told).texts())
    assert capsys.readouterr().out.count(" 37.50 ") == 3
    seeds_table.main([str(out / "ttm-processor.json")])
    assert capsys.readouterr().out.startswith("![Processing unit](")
    # The row of the Token Turing Machine is that of another table as well.
    assert cli.main(["study", "seeds", "ttm-summarizer", *words[3:], "0"]) == 0
    assert len(list(trainings.glob("*.json"))) == 8
    # Other episodes, as many and as long, are other data.
    record(tmp_path / "others", seed=1)
    words[words.index(str(folder))] = str(tmp_path / "others")
    assert cli.main([*words, "0"]) == 0
    assert len(list(trainings.glob("*.json"))) == 11


def test_processes_share_the_rows_of_a_table(tmp_path: Path) -> None:
    words = ["study", "seeds", "hourglass-chunks", "--out", str(tmp_path), "--steps", "1"]
    words += ["--seeds", "0"]
    assert cli.main(words) == 0
    first, *others = sorted(
        tmp_path.glob("trainings/*.json"), key=lambda path: path.stat().st_mtime_ns
    )
    for path in (first, *others):
        path.unlink()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(first.with_name(f".{first.name}.lock")):  # another process is at it
            code = pool.submit(cli.main, words)
            deadline = time.monotonic() + 60
            while not all(path.exists() for path in others) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert all(path.exists() for path in others)
            assert not first.exists()
        assert code.result() == 0
    assert first.exists()


def test_faults_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["study", "seeds", "nonsense"]) == 2
    assert "ttm-write" in capsys.readouterr().err
    assert cli.main(["study", "seeds", "ttm-write", "--out", str(tmp_path)]) == 2
    assert "--data" in capsys.readouterr().err
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"rows": []}))
    assert cli.main(["study", "seeds", "ttm-write", "--figures", str(file)]) == 2
    assert "other.json" in capsys.readouterr().err
