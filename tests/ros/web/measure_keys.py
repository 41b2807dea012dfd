"""How long a key in the browser takes to become a command of the robot, over the page's server and DDS.

    python tests/ros/web/measure_keys.py 100        (so many keys; needs Playwright and Chromium)

Times are those of the machine's clock: of the key in the browser, and of the command in a subscriber. On
a busy machine, most of it is waiting for the processor. How late a sleep of 10 ms ends tells how much.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright
from test_web_node import Both, wait

NOTE_KEYS = """() => {
  window.keysAt = [];
  addEventListener("keydown", event => keysAt.push(performance.timeOrigin + event.timeStamp), true);
}"""


def late_ms(stop: threading.Event) -> list[float]:
    """Return how late sleeps of 10 ms end, until `stop`."""
    found = []
    while not stop.is_set():
        before_s = time.perf_counter()
        time.sleep(0.01)
        found.append((time.perf_counter() - before_s - 0.01) * 1000)
    return found


def key_to_command_ms(both: Any, page: Any, count: int) -> list[float]:
    """Press a key so often, at uneven times; return how long each took to become a command."""
    found = []
    for number in range(count):
        wait(lambda: not any(both.robot.forward[-1:]))
        before = len(both.robot.forward)
        page.keyboard.down("KeyW")
        wait(lambda before=before: any(both.robot.forward[before:]))  # type: ignore[misc]
        moved = next(i for i, speed in enumerate(both.robot.forward[before:]) if speed)
        at_ms = page.evaluate("keysAt.at(-1)")
        found.append(both.robot.times_s[before + moved] * 1000 - at_ms)
        page.keyboard.up("KeyW")
        time.sleep(0.05 + 0.007 * (number % 9))
    return found


def told(values: list[float]) -> str:
    p50, p95, worst = np.percentile(values, [50, 95, 100])
    return f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, worst {worst:.0f} ms"


def main(count: int) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        both = Both(Path(folder))
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = chromium.new_page()
        page.goto(both.address)
        page.evaluate(NOTE_KEYS)
        page.click("#wheel")
        page.wait_for_selector("#wheel.driving")
        stop, late = threading.Event(), []
        thread = threading.Thread(target=lambda: late.extend(late_ms(stop)))
        thread.start()
        key_to_command_ms(both, page, 1)  # the first one finds nothing prepared
        taken = key_to_command_ms(both, page, count)
        stop.set()
        thread.join()
        chromium.close()
        both.close()
    print(f"key to command: {told(taken)}, of {count}")
    print(f"a sleep of 10 ms ends late by: {told(late)}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
