"""The log of a training: scalars and images for the loggers, a progress bar for the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text
from torch import Tensor

from ttm.training.cloning.loop.loggers import Loggers
from ttm.training.cloning.processes.group import Processes

LINE_EVERY_S = 30.0
"""Seconds between two lines of progress where the output is no terminal."""


class RunLog:
    """Averages scalars over several steps and writes the means.

    Reading a scalar off a GPU waits for the GPU, so this is not done at every step.
    """

    def __init__(
        self,
        loggers: Loggers,
        console: Console,
        start_progress: float = 0.0,
        processes: Processes | None = None,
    ) -> None:
        """start_progress: portion of the training that was done before, in [0, 1].

        processes: those that train together, whose scalars add up; None for one alone.
        """
        self._processes = Processes() if processes is None else processes
        self.console = console
        self.loggers = loggers
        self._sums: dict[str, Tensor] = {}
        self._count = 0
        self._images = 0
        self._since_s = self._line_s = time.monotonic()
        columns = (
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:3.0f}%"),
            TextColumn("{task.description}"),
        )
        times = (TimeElapsedColumn(), _TimeLeft())
        self.bar = Progress(*columns, *times, console=console, disable=not console.is_terminal)
        self._task = self.bar.add_task("starting", total=1.0, begun=start_progress)
        self.bar.update(self._task, completed=start_progress)

    def __enter__(self) -> RunLog:
        self.bar.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.bar.stop()
        self.loggers.close(success=error is None)

    def add(self, scalars: Mapping[str, Tensor], images: int) -> None:
        """Add one step.

        scalars: 0-d tensors, on any device. images: the number of images of this process.
        """
        for name, value in scalars.items():
            self._sums[name] = (
                self._sums[name] + value.detach() if name in self._sums else value.detach()
            )
        self._count += 1
        self._images += images

    def write(self, step: int, progress: float, learning_rate: float) -> None:
        """Write the means since the last call to the loggers and to the terminal."""
        seconds = time.monotonic() - self._since_s
        means = self._means()
        images = means.pop("images")
        rates = {"steps_per_s": self._count / seconds, "images_per_s": images / seconds}
        scalars = {f"train/{name}": value for name, value in means.items()}
        scalars |= {"train/learning_rate": learning_rate}
        scalars |= {f"throughput/{name}": value for name, value in rates.items()}
        self.loggers.scalars(step, scalars)
        speed = f"{rates['steps_per_s']:.2f} steps/s  {rates['images_per_s']:.0f} images/s"
        recall = f"  recall {means['recall_ratio']:.2f}" if "recall_ratio" in means else ""
        self._show(f"step {step}  loss {means['loss']:.4f}{recall}  {speed}", progress)
        self._sums, self._count, self._images, self._since_s = {}, 0, 0, time.monotonic()

    def _means(self) -> dict[str, float]:
        """Return the mean of each scalar over the steps, and of all images as "images"."""
        means = {name: (value / self._count).item() for name, value in self._sums.items()}
        means["images"] = float(self._images)
        total = self._processes.sum(torch.tensor(list(means.values()), dtype=torch.float64))
        return dict(zip(means, total.tolist(), strict=True))

    def restart_clock(self) -> None:
        """Forget the steps since the last `write`. Call this after a pause in training."""
        self._since_s = time.monotonic()
        self._sums, self._count, self._images = {}, 0, 0

    def _show(self, facts: str, progress: float) -> None:
        """Show the progress on the bar, or without a terminal as a line every `LINE_EVERY_S`."""
        self.bar.update(self._task, completed=progress, description=facts)
        if not self.console.is_terminal and time.monotonic() - self._line_s >= LINE_EVERY_S:
            self._line_s = time.monotonic()
            self.say(f"{progress:4.0%}  {facts}  {_time_left(self.bar.tasks[self._task])}")

    def write_images(self, step: int, images: Mapping[str, Tensor]) -> None:
        """Write sample images as the network gets them; rows are windows, columns are ticks.

        images: camera -> (B, T, 3, H, W) uint8.
        """
        for camera, frames in images.items():
            # each row: (3, H, T*W)
            rows = [torch.cat(list(window), dim=2) for window in frames[:4].cpu()]
            self.loggers.image(step, f"augmented/{camera}", torch.cat(rows, dim=1))

    def write_validation(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the errors on held-out episodes."""
        self.loggers.scalars(step, {f"validation/{name}": e for name, e in scalars.items()})
        self.loggers.flush()

    def say(self, text: str) -> None:
        """Print a line above the progress bar."""
        self.console.print(text, highlight=False, soft_wrap=True)


class _TimeLeft(ProgressColumn):
    """The column of the bar that shows the time left; Rich's own varies with the last half minute."""

    def render(self, task: Task) -> Text:
        return Text(_time_left(task))


def _time_left(task: Task) -> str:
    """Return the time left by the mean speed since the start, in words."""
    begun = task.fields["begun"]
    done = task.completed - begun
    if task.elapsed is None or done <= 0:
        return "ETA -:--:--"
    left = int(task.elapsed * (1.0 - task.completed) / done)
    return f"ETA {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
