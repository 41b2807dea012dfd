"""Episodes on a Ray cluster of two nodes on this machine, one of which is killed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ttm.policy import UserError, save_checkpoint
from ttm.sim.actors import untrained_policy
from ttm.sim.collect import CollectCommand
from ttm.sim.evaluation import EvaluateCommand
from ttm.sim.workers import WorkerPool

pytest.importorskip("ray")
from ray.cluster_utils import Cluster as RayCluster

from ttm.sim import cluster
from ttm.sim.workers import software

POINT = "point_env:test/Point-v0"
FOLDERS = (Path(__file__).parent, Path(__file__).parents[1])


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayCluster]:
    """A cluster of two nodes. Packages of users are installed on them; here a path stands for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join(map(str, FOLDERS)))
        made = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.add_node(num_cpus=1)
        yield made
        made.shutdown()


@pytest.fixture
def dying(nodes: RayCluster, monkeypatch: pytest.MonkeyPatch) -> RayCluster:
    """The cluster, whose second node is killed as soon as a job is done."""
    result = cluster.Cluster.result
    (second,) = nodes.worker_nodes

    def kill(self: Any, job: Any, future: Any) -> Any:
        if nodes.worker_nodes:
            nodes.remove_node(second, allow_graceful=False)
        return result(self, job, future)

    monkeypatch.setattr(cluster.Cluster, "result", kill)
    return nodes


def test_an_evaluation_gives_the_same_bytes_though_a_node_dies(
    dying: RayCluster, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "policy.safetensors"
    spec = import_module("point_env").PointEnv.policy_spec
    save_checkpoint(checkpoint, untrained_policy(spec), {})
    for out, ray in (("local", None), ("cluster", dying.address)):
        EvaluateCommand(
            out=tmp_path / out,
            checkpoint=str(checkpoint),
            env=POINT,
            episodes=8,
            workers=None if ray else 1,
            ray=ray,
        ).run()
    assert not dying.worker_nodes
    for file in ("result.json", "videos/touch_0000.mp4"):
        ours, theirs = ((tmp_path / out / file).read_bytes() for out in ("local", "cluster"))
        assert ours == theirs, file


def test_episodes_are_recorded_with_the_same_bytes(nodes: RayCluster, tmp_path: Path) -> None:
    for out, ray in (("local", None), ("cluster", nodes.address)):
        CollectCommand(out=tmp_path / out, env=POINT, episodes=2, workers=1, ray=ray).run()
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / out).iterdir()}
        for out in ("local", "cluster")
    )
    assert ours == theirs
    assert len(ours) == 2


def test_a_job_that_kills_its_process_every_time_is_an_error(
    nodes: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "RETRIES", 0)
    adder, number = import_module("adder_worker"), tmp_path / "number"
    number.write_text("10")
    workers = WorkerPool(adder.Adder, (number,), ray=nodes.address, advice="; go on")
    with pytest.raises(UserError, match=r"lost 1 times on .* 1 GB\): [^\n]*; go on$"), workers:
        list(workers.run([adder.Sum(0, kills=True)]))


def test_an_address_without_cluster_is_an_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for given in (address, f"ray://{address}", "nonsense"):
        workers = WorkerPool(print, (), ray=given)  # type: ignore[arg-type]
        with (
            pytest.raises(UserError, match=f"^--ray {given}: no connection [^\n]* ray start"),
            workers,
        ):
            pass


def test_a_node_that_cannot_make_its_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_rendering() -> None:
        raise UserError("no off-screen rendering")

    same = cluster.Start(no_rendering, (), {}, software())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^Ray node [\d.]+: no off-screen rendering$"):
        cluster._hold(same)
    other = cluster.Start(no_rendering, (), {}, {**software(), "torch": "1.0"})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^Ray node [\d.]+: torch is .* there, but 1.0 where"):
        cluster._hold(other)
