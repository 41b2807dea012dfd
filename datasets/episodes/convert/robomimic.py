"""One HDF5 file as robomimic's `SequenceDataset` reads it, with `hdf5_load_next_obs` on or off.

Beside what ours have, each demo has `next_obs`: the observations one tick later, and the last one
twice. Frames are stored as they are, since robomimic decodes no JPEGs. The instruction stands where
RoboCasa (`ep_meta`) and, if all episodes share one, LIBERO (`problem_info`) look for it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import h5py
import numpy as np

from ttm.datasets.access.write_guard import new_file
from ttm.datasets.convert.demo_group import (
    fits_spec,
    write_demo,
    write_file_attributes,
    write_frames,
    write_masks,
)
from ttm.datasets.convert.options import ConvertOptions
from ttm.datasets.convert.recording import Recording, Source
from ttm.datasets.frames import Frames


def write(source: Source, target: Path, options: ConvertOptions) -> None:
    """Write all episodes to the file `target`."""
    masks: dict[str, list[str]] = defaultdict(list)
    instructions = set()
    with_spec = fits_spec(source)
    with new_file(target) as file:
        write_file_attributes(file, source.spec, with_spec=with_spec)
        for number, recording in enumerate(source.recordings()):
            name = f"demo_{number}"
            demo = write_demo(file, name, recording, keep_jpegs=False)
            demo.attrs["ep_meta"] = json.dumps({"lang": recording.instruction})
            _write_next_observations(demo, recording)
            instructions.add(recording.instruction)
            for key in sorted(recording.masks):
                masks[key].append(name)
        if len(instructions) == 1:
            problem = {"language_instruction": instructions.pop()}
            file["data"].attrs["problem_info"] = json.dumps(problem)
        write_masks(file, masks)


def _write_next_observations(demo: h5py.Group, recording: Recording) -> None:
    count = len(recording.actions)
    for name, values in recording.vectors.items():
        demo[f"next_obs/{name}"] = np.concatenate([values[1:], values[-1:]])
    for camera in recording.cameras:
        frames = _one_later(recording.each_frame(camera))
        write_frames(demo, f"next_obs/{camera}", frames, count)


def _one_later(frames: Iterable[Frames]) -> Iterator[Frames]:
    """Yield all frames but the first, and the last one twice."""
    iterator = iter(frames)
    last = next(iterator)
    for last in iterator:
        yield last
    yield last
