"""Every node of a robot beside a camera whose messages are a stranger's: each goes on, and says so.

The nodes are processes that share one robot. `sim_node` listens to no image.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import struct
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import rclpy
import yaml
from failing_robot import FailingRobot
from node_process import WAIT_S, NodeProcess
from PIL import Image
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import default_contract, load_contract
from ttm_policy.qos import LATCHED

CAN = "pick up the red can"
TOKEN = "a-token-for-tests-only"
MOST_GROWTH_BYTES = 200 * 2**20
"""Of the largest memory that a node has used; the pixels of the bomb take 420 MB."""


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, packed: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _bomb() -> bytes:
    """Return a whole PNG of 14,000 x 10,000 black pixels, whose rows are packed a hundred at a time."""
    rows, packer = bytes(100 * (1 + 3 * 14_000)), zlib.compressobj(9, wbits=-15)
    packed = packer.compress(rows) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = struct.pack(">HH", 100 * len(rows) % 65521, 1)  # Adler-32 of zeros
    return _png(14_000, 10_000, b"\x78\xda" + 100 * packed + b"\x03\x00" + checksum)


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(buffer, format="JPEG")
    return buffer.getvalue()


def _images() -> Mapping[str, bytes]:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n%%EndComments\nshowpage\n%%EOF\n"
    return {
        "69 bytes that claim 30000x30000": _png(30_000, 30_000, bytes(12)),
        "bomb": _bomb(),
        "EPS": script,
        "garbage": np.random.default_rng(0).bytes(5000),
        "JPEG cut short": _jpeg()[:200],
        "nothing": b"",
    }


IMAGES = _images()
assert len(IMAGES["69 bytes that claim 30000x30000"]) == 69


class Nodes:
    """The processes, and what they say."""

    def __init__(
        self, robot: FailingRobot, folder: Path, start: Callable[..., NodeProcess]
    ) -> None:
        self.robot, self.status = robot, {"state": ""}
        robot.create_subscription(String, "recorder_node/status", self._on_status, LATCHED)
        self.processes = {
            "policy_node": start("policy_node", instruction=CAN, stop_after_s=600.0, max_age_s=0.6),
            "recorder_node": start(
                "recorder_node", folder=str(folder), countdown_s=0.0, min_fresh=0.0
            ),
            "teleop_node": start("teleop_node", source="gamepad", joystick=""),
            "web_node": start("web.web_node", token=TOKEN, port=0),
        }

    def _on_status(self, message: String) -> None:
        self.status = json.loads(message.data)

    def address(self) -> str:
        """Return where the page is."""

        def found() -> list[str]:
            return re.findall(rf"http://\S+/{TOKEN}/", self.processes["web_node"].output)

        self.robot.wait(found, "the page")
        return found()[0]

    def call(self, name: str, kind: Any = Trigger, **values: Any) -> tuple[bool, str]:
        """Call a service of the recorder."""
        client = self.robot.create_client(kind, f"recorder_node/{name}")
        self.robot.wait(client.service_is_ready, name)
        future = client.call_async(kind.Request(**values))
        self.robot.wait(future.done, name)
        self.robot.destroy_client(client)
        return future.result().success, future.result().message

    def wait_for(self, **status: Any) -> None:
        """Wait for a status of the recorder."""
        self.robot.wait(
            lambda: all(self.status.get(name) == value for name, value in status.items()),
            f"{status}, not {self.status}",
        )

    def record(self) -> None:
        """Record a short episode."""
        before = self.status["episodes"]
        assert self.call("start")[0]
        self.robot.wait(lambda: self.status["ticks"] > 2, "ticks")
        assert self.call("stop", SetBool, data=True)[0]
        self.wait_for(episodes=before + 1, problem="")

    def largest_bytes(self) -> dict[str, int]:
        """Return the largest memory that each process has used."""
        found = {}
        for name, process in self.processes.items():
            text = Path(f"/proc/{process._process.pid}/status").read_text()
            found[name] = 1024 * int(text.split("VmHWM:")[1].split()[0])
        return found


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory,
    checkpoint: Path,
    observations: list[dict[str, np.ndarray]],
) -> Iterator[Nodes]:
    """Nodes that do their work, with a program in the place of Ghostscript that notes its start."""
    folder = tmp_path_factory.mktemp("hostile")
    ghostscript = folder / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {folder / 'started'}\n")
    ghostscript.chmod(0o755)
    data = yaml.safe_load(default_contract().read_text())
    data["observations"]["head"] |= {"type": "sensor_msgs/CompressedImage", "resize": True}
    contract = folder / "robot.yaml"
    contract.write_text(yaml.safe_dump(data))
    rclpy.init()
    robot = FailingRobot(load_contract(contract), SPEC, observations[0])
    given = {"contract": str(contract), "use_sim_time": True}

    def start(name: str, **parameters: Any) -> NodeProcess:
        parameters["checkpoint" if name == "policy_node" else "spec"] = str(checkpoint)
        return NodeProcess(name, folder / f"of_{name}", given | parameters)

    path = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}{os.pathsep}{path}"
    started = Nodes(robot, folder / "episodes", start)
    os.environ["PATH"] = path
    try:
        robot.wait_for_motion()
        robot.instruct(CAN)
        started.wait_for(instruction=CAN, missing=[])
        started.record()
        yield started
    finally:
        robot.close()
        rclpy.shutdown()
        ran = {name: process.exit_code for name, process in started.processes.items()}
        ended = {name: process.end() for name, process in started.processes.items()}
        for name, process in started.processes.items():
            print(f"{name} ended with {ended[name]}:\n{process.output}")
    assert ran == dict.fromkeys(ran)
    assert ended == dict.fromkeys(ended, 0)
    assert not (folder / "started").exists(), "Ghostscript was run"


async def _page_says(address: str, words: str, *, wanted: bool) -> None:
    """Wait until a page says some words, or says them no more."""
    origin = address.removesuffix(f"/{TOKEN}/")
    async with (
        aiohttp.ClientSession(headers={"Origin": origin}) as session,
        session.ws_connect(f"{address}socket") as page,
    ):
        async for message in page:
            if message.type is aiohttp.WSMsgType.BINARY:
                await page.send_json({"do": "seen"})
                continue
            data = message.json()
            if "reasons" in data and (words in str(data["reasons"])) is wanted:
                return
    raise AssertionError("the server has closed the socket")


def page_says(nodes: Nodes, words: str, *, wanted: bool = True) -> None:
    saying = _page_says(nodes.address(), words, wanted=wanted)
    asyncio.run(asyncio.wait_for(saying, WAIT_S))


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_of_a_stranger_ends_no_node(nodes: Nodes, image: str) -> None:
    robot, before, words = nodes.robot, nodes.largest_bytes(), "cannot be used"
    assert nodes.call("start")[0]
    robot.wait(lambda: nodes.status["ticks"] > 2, "ticks")
    robot.damage["head"] = lambda message: setattr(message, "data", array("B", IMAGES[image]))
    robot.wait(lambda: words in robot.message, words)
    robot.wait(lambda: robot.stands, "zero on all motion topics")
    page_says(nodes, words)
    robot.wait(lambda: words in nodes.status["problem"], "the recorder's reason")
    nodes.wait_for(state="ready")
    refused_s = time.monotonic() + WAIT_S
    while words not in nodes.call("start")[1]:  # what begins while it comes is refused
        assert time.monotonic() < refused_s
        nodes.call("discard")
    robot.repair()
    robot.wait_for_motion()
    nodes.record()
    page_says(nodes, words, wanted=False)
    grown = {name: size - before[name] for name, size in nodes.largest_bytes().items()}
    assert max(grown.values()) < MOST_GROWTH_BYTES, grown
    assert not any(process.exit_code is not None for process in nodes.processes.values())
