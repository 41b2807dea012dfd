"""Which parts of the action are orientations or poses close to what is measured, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product as pairs

import numpy as np
import torch
from torch import Tensor

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.episode_reader import Floats
from ttm.policy.errors import UserError
from ttm.policy.network.relative.forms import POSITION_SIZE, ROTATION_SIZES, Form
from ttm.policy.network.relative.reference import TOGETHER, Reference, looks_turning
from ttm.policy.network.relative.rotations import deviation, matrices, product
from ttm.policy.spec import ActionPart, PolicySpec

CLOSE = 0.5
"""A part is close to a vector if the turns between them spread so much less than the part itself."""
ALIKE = 1.5
"""Forms whose turns spread up to so many times as much as the least are named, too."""
LARGEST_DEVIATION = 0.05
"""Values that deviate more from a rotation in a form are not written in it."""
MOST_TICKS = 2000
"""Ticks that are looked at, evenly spread."""

Vectors = Mapping[str, Tensor]


def turning_lines(episodes: EpisodeDataset) -> list[str]:
    """Return one line for each part of the action that `ttm train --relative` suits as a rotation."""
    spec = episodes.spec
    actions = _some([episode.actions for episode in episodes])
    vectors = {
        vector.name: _some([episode.proprioception(vector.name) for episode in episodes])
        for vector in spec.proprioception
    }
    lines = []
    for part in spec.actions:
        commands = actions[:, spec.action_slices[part.name]]
        ratios = {
            reference: _ratio(commands, vectors, reference) for reference in _candidates(part, spec)
        }
        least = min(ratios.values(), default=CLOSE)
        if least >= CLOSE:
            continue
        best, *others = sorted(
            (r for r in ratios if ratios[r] <= ALIKE * least), key=lambda r: ratios[r]
        )
        also = f" (or, as the data mean it, {', '.join(map(str, others))})" if others else ""
        lines.append(
            f"{part.name} stays close to {best.vector}: the turn between them spreads {least:.2g} times as "
            f"much as the action; to train on it: ttm train --relative {best}{also}"
        )
    return lines


def _candidates(part: ActionPart, spec: PolicySpec) -> Iterator[Reference]:
    """Yield all references that a part may have as a rotation, if names or labels speak of one."""
    forms = [Form(name, pose) for pose in (False, True) for name in ROTATION_SIZES]
    sizes = {vector.name: vector.size for vector in spec.proprioception}
    labels = {vector.name: vector.labels for vector in spec.proprioception}
    positions = [name for name, size in sizes.items() if size == POSITION_SIZE]
    joined = {
        f"{one}{TOGETHER}{other}": sizes[one] + sizes[other]
        for one, other in pairs(positions, sizes)
        if one != other
    }
    for (vector, size), form, measured in pairs({**sizes, **joined}.items(), forms, forms):
        if form.size != part.size or form.pose != measured.pose or size < measured.size:
            continue
        starts = range(size - measured.size + 1) if vector in sizes else (0,)
        for first in starts:
            whole = size == measured.size
            values = None if whole else (first, first + measured.size)
            reference = Reference(part.name, vector, values, form=form, measured_form=measured)
            said = [label for name in vector.split(TOGETHER) for label in labels[name]]
            if looks_turning(part, vector, said) and _fits(reference, spec):
                yield reference


def _fits(reference: Reference, spec: PolicySpec) -> bool:
    try:
        reference.of(spec)
    except UserError:
        return False
    return True


def _ratio(commands: Tensor, vectors: Vectors, reference: Reference) -> float:
    """Return the spread of the turns as a multiple of that of the commands; infinite for no rotations."""
    assert reference.form is not None, "a candidate has forms"
    assert reference.measured_form is not None, "a candidate has forms"
    measured = torch.cat([vectors[name] for name in reference.vector.split(TOGETHER)], dim=-1)
    first, stop = reference.values or (0, measured.shape[1])
    rotations = []
    for values, form in (
        (commands, reference.form),
        (measured[:, first:stop], reference.measured_form),
    ):
        turns = values[:, form.num_positions :]
        if deviation(turns, form.rotation).max() > LARGEST_DEVIATION:
            return float("inf")
        rotations.append(matrices(turns, form.rotation))
    turned = product(rotations[1].mT, rotations[0])
    return _spread(turned) / max(_spread(rotations[0]), 1e-12)


def _spread(rotations: Tensor) -> float:
    """Return the root of the mean squared distance of rotations (n, 3, 3) from their mean matrix."""
    return float((rotations - rotations.mean(dim=0)).square().sum(dim=(1, 2)).mean().sqrt())


def _some(values: list[Floats]) -> Tensor:
    """Return the rows of all episodes together, (n, K), of many some, in double precision."""
    whole = np.concatenate(values)
    return torch.from_numpy(whole[:: -(-len(whole) // MOST_TICKS)]).double()
