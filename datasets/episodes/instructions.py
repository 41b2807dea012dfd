"""The sentence embeddings of the instructions of a data set, each computed once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ttm.datasets.episode_reader import EpisodeReader, Floats
from ttm.datasets.layout import DEFAULT_INSTRUCTION
from ttm.policy.network.language import LANGUAGE_MODEL, embed_instruction


def embed_instructions(episodes: Sequence[EpisodeReader]) -> Floats:
    """Return the embedding of each episode's instruction, (E, L) float32.

    An embedding that the file stores is taken if the default language model made it. Otherwise the
    language model, which takes seconds to load, embeds each distinct instruction once.
    """
    embeddings: dict[str, Floats] = {}
    for episode in episodes:
        if episode.instruction not in embeddings:
            embeddings[episode.instruction] = _embedding(episode)
    return np.stack([embeddings[episode.instruction] for episode in episodes])


def _embedding(episode: EpisodeReader) -> Floats:
    stored = episode.language_embedding
    if stored is not None and episode.language_model in (None, LANGUAGE_MODEL):
        return stored
    return embed_instruction(episode.instruction or DEFAULT_INSTRUCTION)
