"""What a training tells: scalars and sample images for TensorBoard, and a progress bar in the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter


class RunLog:
    """Means of scalars between writings, so that reading them off the device costs no wait at every step."""

    def __init__(self, folder: Path, console: Console, start_progress: float = 0.0) -> None:
        self.console = console
        self.writer = SummaryWriter(str(folder))
        self._sums: dict[str, Tensor] = {}
        self._count = 0
        self._images = 0
        self._since_s = time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:5.1f}%"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            _TimeLeft(),
            console=console,
        )
        self._task = self.bar.add_task("train", total=1.0, completed=start_progress, facts="", begun=start_progress)

    def __enter__(self) -> RunLog:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        self.writer.close()

    def add(self, scalars: Mapping[str, Tensor], images: int) -> None:
        """Counts one step: its scalars (0-d tensors, on any device) and the number of images it saw."""
        for name, value in scalars.items():
            self._sums[name] = self._sums[name] + value.detach() if name in self._sums else value.detach()
        self._count += 1
        self._images += images

    def write(self, step: int, progress: float, learning_rate: float) -> None:
        """Writes the means since the last writing to TensorBoard and to the progress bar."""
        seconds = time.monotonic() - self._since_s
        means = {name: (value / self._count).item() for name, value in self._sums.items()}
        rates = {"steps_per_s": self._count / seconds, "images_per_s": self._images / seconds}
        for name, value in {**means, "learning_rate": learning_rate}.items():
            self.writer.add_scalar(f"train/{name}", value, step)
        for name, value in rates.items():
            self.writer.add_scalar(f"throughput/{name}", value, step)
        facts = f"step {step}  loss {means['loss']:.4f}  {rates['steps_per_s']:.2f} steps/s"
        facts += f"  {rates['images_per_s']:.0f} images/s"
        self.bar.update(self._task, completed=progress, facts=facts)
        self._sums, self._count, self._images, self._since_s = {}, 0, 0, time.monotonic()

    def write_images(self, step: int, images: Mapping[str, Tensor]) -> None:
        """images: camera -> (B, T, 3, H, W) uint8, as the network gets them. Rows are windows, columns ticks."""
        for camera, frames in images.items():
            rows = [torch.cat(list(window), dim=2) for window in frames[:4].cpu()]  # each (3, H, T*W)
            self.writer.add_image(f"augmented/{camera}", torch.cat(rows, dim=1), step)

    def write_validation(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the errors on held-out episodes."""
        for name, value in scalars.items():
            self.writer.add_scalar(f"validation/{name}", value, step)
        self.writer.flush()

    def say(self, text: str) -> None:
        """Prints a line above the progress bar."""
        self.console.print(text, highlight=False, soft_wrap=True)


class _TimeLeft(ProgressColumn):
    """Time left, from the whole training's mean speed: rich's own looks at half a minute and wavers."""

    def render(self, task: Task) -> Text:
        begun = task.fields["begun"]
        done = task.completed - begun
        if task.elapsed is None or done <= 0:
            return Text("ETA -:--:--")
        left = int(task.elapsed * (1.0 - task.completed) / done)
        return Text(f"ETA {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}")
