"""Embeddings of instructions: stored ones are used, others are computed once."""

from __future__ import annotations

import numpy as np

from ttm.datasets import embed_instructions, open_dataset

EMBEDDING = np.linspace(0, 1, 384, dtype=np.float32)


def test_each_instruction_is_embedded_once_unless_stored(tmp_path, record, monkeypatch):
    asked = []

    def embed(text):
        asked.append(text)
        return np.full(384, len(text), np.float32)

    monkeypatch.setattr("ttm.datasets.dataset.embed_instruction", embed)
    record(tmp_path / "0.hdf5", instruction="stored", embedding=EMBEDDING)
    record(
        tmp_path / "1.hdf5",
        instruction="of another model",
        embedding=EMBEDDING,
        language_model="other",
    )
    for i in (2, 3):
        record(tmp_path / f"{i}.hdf5", instruction="push")
    record(tmp_path / "4.hdf5", instruction="")
    embeddings = embed_instructions(list(open_dataset(tmp_path)))
    assert asked == ["of another model", "push", "do the task"]
    np.testing.assert_array_equal(embeddings[0], EMBEDDING)
    assert embeddings[1:, 0].tolist() == [16, 4, 4, 11]
