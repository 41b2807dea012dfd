"""The sentence embeddings of the instructions of a data set, each computed once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ttm.datasets.episode_file import damaged
from ttm.datasets.episode_reader import EpisodeReader, Floats
from ttm.datasets.layout import DEFAULT_INSTRUCTION
from ttm.policy.network.language import EMBEDDING_SIZE, LANGUAGE_MODEL, embed_instruction

MOST_EMBEDDED = 1e3
"""Values of an embedding beyond this are refused; the language model's are up to 1."""


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


def stored_embedding(episode: EpisodeReader) -> Floats | None:
    """Return the embedding that the file stores, (L,); None if none, or one of another model.

    Raises `UserError` if the default language model cannot have made it.
    """
    stored = episode.language_embedding
    if stored is None or episode.language_model not in (None, LANGUAGE_MODEL):
        return None
    if stored.shape != (EMBEDDING_SIZE,) or not (np.abs(stored) <= MOST_EMBEDDED).all():
        raise damaged(
            episode.path,
            f"data/{episode.name}/language_embedding has shape {stored.shape}, or is not finite or "
            f"large, and {LANGUAGE_MODEL} gives {EMBEDDING_SIZE} values from -1 to 1",
            "name its model by the attribute language_model, or take it out of the file",
        )
    return stored


def _embedding(episode: EpisodeReader) -> Floats:
    stored = stored_embedding(episode)
    if stored is not None:
        return stored
    return embed_instruction(episode.instruction or DEFAULT_INSTRUCTION)
