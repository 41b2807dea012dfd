"""A small policy for MiniGrid levels with an instruction, with a temporal core as its memory.

As in BabyAI's baseline (Chevalier-Boisvert et al. 2019) a recurrent network reads the instruction,
and FiLM applies it to what the agent sees. There are only a few dozen kinds of tiles. FiLM is
therefore computed for each kind and instruction; for each tile at each tick it would cost more than
the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.temporal_core import CoreConfig, CoreState
from ttm.training.study.minigrid.environment import NUM_ACTIONS, VIEW

NUM_TILES = VIEW * VIEW
NUM_DIRECTIONS = 4
UNKNOWN = 0
"""Number of a word or a kind of tile that is in no demonstration, and of the padding after an
instruction."""
CODES = np.array([24, 4, 1])
"""Factors that make one number of a tile's object (0 to 10), colour (0 to 5) and state (0 to 3)."""
NUM_CODES = 11 * 24
TILE_WIDTH = 32
"""Channels of a tile after FiLM."""
WORD_WIDTH = 32
"""Channels of a word's embedding."""


@dataclass(frozen=True)
class Vocabulary:
    """The words and kinds of tiles of demonstrations, numbered from 1; others are `UNKNOWN`."""

    words: tuple[str, ...]
    codes: tuple[int, ...]

    @classmethod
    def of(cls, missions: Sequence[str], images: NDArray[np.uint8]) -> Vocabulary:
        """Return the vocabulary of demonstrations. images: (..., 7, 7, 3), see `MinigridView`."""
        words = {word for mission in set(missions) for word in split(mission)}
        codes = np.flatnonzero(np.bincount(_codes(images).ravel(), minlength=NUM_CODES))
        return cls(tuple(sorted(words)), tuple(codes.tolist()))

    def tiles(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the number of each tile's kind, (..., 49), for images (..., 7, 7, 3)."""
        numbers = np.full(NUM_CODES, UNKNOWN, np.uint8)
        numbers[list(self.codes)] = np.arange(1, len(self.codes) + 1)
        tiles: NDArray[np.uint8] = numbers[_codes(images)].reshape(*images.shape[:-3], NUM_TILES)
        return tiles

    def sentences(self, missions: Sequence[str]) -> Tensor:
        """Return the numbers of the words of M missions, padded: (M, words) int64."""
        numbers = {word: number for number, word in enumerate(self.words, start=1)}
        rows = [torch.tensor([numbers.get(word, UNKNOWN) for word in split(m)]) for m in missions]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=UNKNOWN)


def split(mission: str) -> list[str]:
    """Return the words and commas of an instruction."""
    return mission.replace(",", " ,").split()


def _codes(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    # The images have 8-bit numbers, and their products must not overflow.
    codes: NDArray[np.int64] = images.astype(np.int16) @ CODES
    return codes


@dataclass(frozen=True)
class Instructions:
    """M instructions as the policy has read them."""

    tiles: Tensor
    """(M, kinds, `TILE_WIDTH`)."""
    vectors: Tensor
    """(M, D)."""

    def __getitem__(self, index: Tensor) -> Instructions:
        """Return a part of the instructions. index: (any,) int64 or bool."""
        return Instructions(self.tiles[index], self.vectors[index])


class MinigridPolicy(nn.Module):
    """Makes one token of instruction and view at each tick, for the core, and scores the actions.

    The scores depend on the outputs of the core and on the token itself.
    """

    def __init__(self, config: CoreConfig, vocabulary: Vocabulary, width: int) -> None:
        """width: D, the width of the token and the core."""
        super().__init__()
        self.reader = InstructionReader(len(vocabulary.words) + 1, width)
        self.tiles = TileReader(len(vocabulary.codes) + 1, width)
        self.see_tiles = nn.Linear(NUM_TILES * TILE_WIDTH, width)
        self.direction = nn.Embedding(NUM_DIRECTIONS, width)
        self.hidden = nn.Linear(width, 2 * width)
        self.out = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.core = config.build(width, num_inputs=1)
        self.head = nn.Linear(2 * width, NUM_ACTIONS)

    def instruct(self, sentences: Tensor) -> Instructions:
        """Read M instructions. sentences: (M, words) int64, see `Vocabulary.sentences`."""
        vectors = self.reader(sentences)
        return Instructions(self.tiles(vectors), vectors)

    def forward(
        self,
        instructions: Instructions,
        which: Tensor,
        tiles: Tensor,
        directions: Tensor,
        state: CoreState | None = None,
    ) -> tuple[Tensor, CoreState]:
        """Score the actions at T ticks of B episodes, from their beginning or from `state` on.

        Returns the scores (B, T, 7) and the core's state.

        which: (B,) int64, the number of each episode's instruction.
        tiles: (B, T, 49) int64.
        directions: (B, T) int64.
        """
        tokens, outputs, state = self.remember(instructions, which, tiles, directions, state)
        return self.score(tokens, outputs), state

    def remember(
        self,
        instructions: Instructions,
        which: Tensor,
        tiles: Tensor,
        directions: Tensor,
        state: CoreState | None = None,
    ) -> tuple[Tensor, Tensor, CoreState]:
        """Return the tokens (B, T, D), the core's mean outputs (B, T, D), and the core's state.

        See `forward`.
        """
        tokens = self._see(instructions, which, tiles, directions)
        outputs, state = self.core(tokens.unsqueeze(2), state)
        return tokens, outputs.mean(dim=2), state

    def score(self, tokens: Tensor, outputs: Tensor) -> Tensor:
        """Return the scores of the actions, (B, T, 7), for what `remember` returned."""
        scores: Tensor = self.head(torch.cat([outputs, tokens], dim=-1))
        return scores

    def _see(
        self, instructions: Instructions, which: Tensor, tiles: Tensor, directions: Tensor
    ) -> Tensor:
        """Return the tokens (B, T, D)."""
        kinds = instructions.tiles.shape[1]
        rows = F.embedding(which[:, None, None] * kinds + tiles, instructions.tiles.flatten(0, 1))
        x = self.see_tiles(rows.flatten(-2)) + self.direction(directions)
        x = torch.relu(x + instructions.vectors[which].unsqueeze(1))
        token: Tensor = self.norm(x + self.out(torch.relu(self.hidden(x))))
        return token


class InstructionReader(nn.Module):
    """Reads an instruction with a GRU (Cho et al. 2014)."""

    def __init__(self, num_words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, WORD_WIDTH, padding_idx=UNKNOWN)
        self.gru = nn.GRU(WORD_WIDTH, width, batch_first=True)

    def forward(self, sentences: Tensor) -> Tensor:
        """sentences: (M, words) int64, padded at the end -> (M, D), after the last words."""
        outputs, _ = self.gru(self.embedding(sentences))
        place = torch.arange(sentences.shape[1], device=sentences.device)
        last = torch.where(sentences != UNKNOWN, place, 0).amax(dim=1)
        read: Tensor = outputs[torch.arange(len(outputs), device=sentences.device), last]
        return read


class TileReader(nn.Module):
    """Embeds each kind of tile, in two layers that the instruction scales and shifts (FiLM)."""

    HIDDEN = 64

    def __init__(self, num_kinds: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(num_kinds, self.HIDDEN))
        self.first = nn.Linear(width, 2 * self.HIDDEN)
        self.between = nn.Linear(self.HIDDEN, TILE_WIDTH)
        self.second = nn.Linear(width, 2 * TILE_WIDTH)

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors: (M, D) -> (M, kinds, `TILE_WIDTH`)."""
        x = torch.relu(_film(self.embedding, self.first(vectors)))
        return torch.relu(_film(self.between(x), self.second(vectors)))


def _film(x: Tensor, parameters: Tensor) -> Tensor:
    """Scale and shift x: (kinds, C) or (M, kinds, C), parameters: (M, 2 C) -> (M, kinds, C)."""
    scale, shift = parameters.unsqueeze(1).chunk(2, dim=-1)
    return x * (1 + scale) + shift
