"""The sentence embeddings of a data set's instructions, each made once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ttm.datasets.episode_reader import Episode, Floats

DEFAULT_INSTRUCTION = "do the task"
"""Stands in for the instruction of episodes that carry none; give the policy the same when it runs."""


def embed_instructions(episodes: Sequence[Episode]) -> Floats:
    """(E, L) float32, of each episode's instruction: stored in the file, or by the language model.

    The language model, which takes seconds to load, runs once for each distinct instruction, and not at all
    if the recorder stored the embeddings that the default model makes.
    """
    made: dict[str, Floats] = {}
    for episode in episodes:
        if episode.instruction not in made:
            made[episode.instruction] = _embedding(episode)
    return np.stack([made[episode.instruction] for episode in episodes])


def _embedding(episode: Episode) -> Floats:
    from ttm.policy.network.language import LANGUAGE_MODEL, embed_instruction

    stored = episode.language_embedding
    if stored is not None and episode.language_model in (None, LANGUAGE_MODEL):
        return stored
    return embed_instruction(episode.instruction or DEFAULT_INSTRUCTION)
