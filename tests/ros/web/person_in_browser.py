"""A person's whole session in a real browser: `ttm record --sim`, driven by keys and by touch.

    python tests/ros/web/person_in_browser.py demos pictures        (needs Playwright and Chromium)

At the width of a desktop and at that of a phone, it drives the simulated robot, records three episodes into
the first folder, discards one, judges and renames one, plays one, and checks the folder. The second folder
gets pictures of what the page showed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from test_browser import CHROMIUM, DESKTOP, PHONE, WAIT_MS

from ttm.datasets import EpisodeReader, check_dataset, open_dataset
from ttm.sim.kitchen.spec import SPEC

DRIVE_S = 1.0
"""How long a key or a finger is held, in simulated time."""
LOOK_MS = 100
PAGE_TIMEOUT_S = 10
"""A busy machine may let the browser wait."""
RENAMED = "wave to the kitchen"


@contextmanager
def recording(folder: Path) -> Iterator[str]:
    """Run `ttm record --sim`, and give the address of its page."""
    command = [sys.executable, "-m", "ttm.training.cli", "record", "--sim", "--port", "0"]
    (folder.parent / "record.yaml").write_text("countdown-s: 0.5")
    command += ["--config", str(folder.parent / "record.yaml")]
    command += ["--page-timeout-s", str(PAGE_TIMEOUT_S)]
    process = subprocess.Popen(
        [*command, "--out", str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        found = (re.search(r"http://\S+", line) for line in process.stdout)
        yield next(match.group() for match in found if match)
    finally:
        process.terminate()
        process.communicate()


class Person:
    """Looks at one window of the page, and uses it."""

    def __init__(self, browser: Any, address: str, shape: dict[str, Any], pictures: Path) -> None:
        self._window = browser.new_context(**shape)
        self.page = self._window.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self._press = self.page.tap if shape.get("has_touch") else self.page.click
        self._pictures = pictures
        self.page.goto(address)

    def press(self, selector: str) -> None:
        self._press(selector)

    def see(self, selector: str, name: str = "") -> None:
        """Wait until something is shown, and take a picture."""
        self.page.wait_for_selector(selector)
        if name:
            self.page.screenshot(path=self._pictures / f"{name}.png", full_page=True)

    def record(self, drive: Callable[[], None], end: str, name: str) -> None:
        """Record an episode while somebody drives, and end it by a button."""
        self.press("#wheel:not(.driving)")
        self.see("#wheel.driving")
        self.press("#start:not([disabled])")
        while not self.page.is_visible("#phase.live"):
            self.page.wait_for_timeout(LOOK_MS)
            if self.page.is_visible(
                "#toast"
            ):  # the recorder of a busy machine gave no answer in time
                print(f"told: {self.page.text_content('#toast')}", flush=True)
                self.page.wait_for_selector("#toast", state="hidden")
                self.press("#start:not([disabled])")
        drive()
        self.see("#phase.live", name)
        self.press(end)
        self.see("#start:not([disabled])")
        self.press("#wheel")
        print(f"{name}: done", flush=True)

    def keys(self) -> None:
        """Drive forward and to the left, move the gripper, and close it."""
        for number, keys in enumerate((["KeyW", "KeyA"], ["ArrowUp"]), start=1):
            for key in keys:
                self.page.keyboard.down(key)
            self.wait_for(number * DRIVE_S)
            for key in keys:
                self.page.keyboard.up(key)
        self.page.keyboard.press("Space")
        self.wait_for(3 * DRIVE_S)

    def wait_for(self, recorded_s: float) -> None:
        """Wait until so much of the episode is recorded."""
        self.until(lambda: float(self.page.text_content("#phase").split()[1]) >= recorded_s)

    def until(self, done: Callable[[], bool]) -> None:
        """Wait for what the page comes to say. It lets no script of ours wait in it."""
        deadline_s = time.monotonic() + WAIT_MS / 1000
        while not done():
            assert time.monotonic() < deadline_s
            self.page.wait_for_timeout(LOOK_MS)

    def touch(self) -> None:
        """Push the stick of the base forward with a finger."""
        stick = self.page.locator("[data-control='base.0']")
        stick.scroll_into_view_if_needed()
        box = stick.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        finger = self._window.new_cdp_session(self.page)
        for kind, points in (
            ("touchStart", [{"x": x, "y": y}]),
            ("touchMove", [{"x": x, "y": y - box["height"] / 2}]),
        ):
            finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        self.wait_for(DRIVE_S)
        finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    def close(self) -> None:
        self._window.close()


def sit_at_a_desk(person: Person) -> None:
    """By keys: one episode that is kept, one that is dropped, and one that is judged and renamed."""
    person.see("#start:not([disabled])", "desktop")
    person.record(person.keys, "#success", "desktop_records")
    person.record(person.keys, "#discard", "desktop_discards")
    person.record(person.keys, "#failure", "desktop_fails")
    person.see("#episodes li:nth-child(2) .thumb")
    person.press("#episodes li:first-child [title='change the instruction']")
    person.page.fill("#episodes li:first-child input", RENAMED)
    person.page.keyboard.press("Enter")
    person.see(f"#episodes li:first-child b:text-is('{RENAMED}')")
    person.press("#episodes li:first-child .yes")
    person.see("#episodes li:first-child .yes[aria-pressed='true']", "desktop_labels")
    person.press("#episodes li:first-child .thumb")
    person.until(lambda: person.page.evaluate("document.getElementById('film').readyState >= 2"))
    person.see("#player", "desktop_plays")
    person.press("#close")


def sit_on_a_sofa(person: Person) -> None:
    """By touch: an episode that is kept."""
    person.see("#start:not([disabled])", "phone")
    assert person.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    person.record(person.touch, "#success", "phone_records")
    person.see("#episodes li:nth-child(3) .thumb", "phone_lists")


def told(episode: EpisodeReader) -> str:
    """Return what an episode says, after checking that the robot was driven."""
    base = episode.actions[:, SPEC.action_slices["base"]]
    assert (base[:, 0] > 0).any(), f"{episode.path.name}: nobody drove forward"
    return (
        f"{episode.path.name}: {episode.instruction}, success {episode.success}, "
        f"{episode.num_samples} ticks"
    )


def main(folder: Path, pictures: Path) -> None:
    """Hold the session, and print what was recorded."""
    assert not folder.exists() or not any(folder.iterdir()), f"{folder} must be empty"
    pictures.mkdir(parents=True, exist_ok=True)
    errors: list[str] = []
    with recording(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for shape, session in ((DESKTOP, sit_at_a_desk), (PHONE, sit_on_a_sofa)):
            person = Person(browser, address, shape, pictures)
            person.page.on("pageerror", lambda error: errors.append(str(error)))
            session(person)
            person.close()
        browser.close()
    episodes = sorted(open_dataset(folder), key=lambda episode: episode.path.name)
    print("\n".join(map(told, episodes)))
    judged = [(episode.instruction == RENAMED, episode.success) for episode in episodes]
    assert judged == [(False, True), (True, True), (False, True)], judged
    report = check_dataset(folder)
    assert (report.num_errors, errors) == (0, []), (report, errors)
    print(f"ttm data check: {report.num_errors} faults; pictures in {pictures}")


if __name__ == "__main__":
    assert shutil.which("chromium"), "Chromium is not here"
    main(Path(sys.argv[1]), Path(sys.argv[2]))
