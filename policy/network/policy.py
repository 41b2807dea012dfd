"""Configuration and assembly of the policy: FiLM-EfficientNet -> tokens -> temporal core -> action head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ttm.policy.cores.registry import core_from_dict, core_to_dict
from ttm.policy.cores.temporal_core import CoreConfig, CoreState
from ttm.policy.cores.ttm.machine import TokenTuringConfig
from ttm.policy.errors import UserError
from ttm.policy.layers.mlp import Mlp
from ttm.policy.network.action_head import ActionHeadConfig, build_action_head
from ttm.policy.network.film_efficientnet import FilmEfficientNet, VisionConfig
from ttm.policy.network.language import EMBEDDING_SIZE, LANGUAGE_MODEL
from ttm.policy.network.normalizer import Normalizer
from ttm.policy.network.vision_tokens import CameraTokens
from ttm.policy.spec import PolicySpec


@dataclass(frozen=True)
class PolicyConfig:
    """Everything that, beside the spec, is needed to build the network."""

    width: int = 128
    """D, width of all tokens."""
    tokens_per_camera: int = 6
    language_size: int = 128
    """Width of the instruction's code that FiLM sees."""
    image_size: int = 64
    """Pixels; a hint for the size of frames where data and robot leave it open. The spec decides."""
    language_model: str = LANGUAGE_MODEL
    embedding_size: int = EMBEDDING_SIZE
    """L, values in an instruction's embedding."""
    vision: VisionConfig = field(default_factory=VisionConfig)
    core: CoreConfig = field(default_factory=TokenTuringConfig)
    head: ActionHeadConfig = field(default_factory=ActionHeadConfig)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `from_dict` reads it back."""
        return {**asdict(self), "core": core_to_dict(self.core)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicyConfig:
        """Raises `TypeError` or `KeyError` if `data` is of another version."""
        parts = {
            "vision": VisionConfig(**data["vision"]),
            "core": core_from_dict(data["core"]),
            "head": ActionHeadConfig(**data["head"]),
        }
        return cls(**{**data, **parts})


PRESETS: Mapping[str, PolicyConfig] = MappingProxyType(
    {
        "tiny": PolicyConfig(
            vision=VisionConfig(
                width_coefficient=0.5, depth_coefficient=1.0, reduction=8, norm="group"
            ),
        ),
        "base": PolicyConfig(
            width=256,
            tokens_per_camera=8,
            language_size=256,
            image_size=224,
            vision=VisionConfig(reduction=32),
            core=TokenTuringConfig(
                memory_size=32, process_size=16, num_layers=4, num_heads=8, mlp_size=1024
            ),
            head=ActionHeadConfig(hidden_size=512),
        ),
        "paper": PolicyConfig(
            width=512,
            tokens_per_camera=44,
            language_size=512,
            image_size=300,
            vision=VisionConfig(model="efficientnet-b3", reduction=32),
            core=TokenTuringConfig(
                memory_size=96, process_size=16, num_layers=8, num_heads=8, mlp_size=2048
            ),
            head=ActionHeadConfig(hidden_size=512),
        ),
    }
)
"""tiny: for CPUs, about 1 million parameters. base: EfficientNet-B0. paper: B3 and the paper's sizes."""

PREVIOUS_ACTION, INSTRUCTION = "previous action", "instruction"
"""Names of the two sources of tokens, beside cameras and proprioception; see `Policy.token_sources`."""


@dataclass(frozen=True)
class PolicyInputs:
    """What the network sees at T ticks of B windows, in the spec's units."""

    images: Mapping[str, Tensor]
    """Camera -> (B, T, 3, H, W) uint8, or float in [0, 1]."""
    proprioception: Mapping[str, Tensor]
    """Name -> (B, T, K) float32."""
    previous_action: Tensor
    """(B, T, A) float32; zeros at an episode's first tick."""
    previous_action_valid: Tensor
    """(B, T) bool; False at an episode's first tick, or to hide it: a learned vector stands in."""
    language: Tensor
    """(B, L) float32, the instruction's embedding."""
    proprioception_valid: Tensor | None = None
    """(B, T) bool; False to hide it. None: all valid."""

    def to(self, device: torch.device | str) -> PolicyInputs:
        """The same on `device`."""
        return PolicyInputs(
            {name: value.to(device) for name, value in self.images.items()},
            {name: value.to(device) for name, value in self.proprioception.items()},
            self.previous_action.to(device),
            self.previous_action_valid.to(device),
            self.language.to(device),
            None if self.proprioception_valid is None else self.proprioception_valid.to(device),
        )


@dataclass(frozen=True)
class ActionPrediction:
    """`raw` (B, T, F): what the action head gives, F = A for the continuous head; see `Policy.decode`."""

    raw: Tensor


class OptionalVector(nn.Module):
    """A vector -> one token, by an MLP; where it is not valid, a learned token stands in."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.mlp = Mlp(size, width, width)
        self.none = nn.Parameter(torch.randn(width) * 0.02)

    def forward(self, vector: Tensor, valid: Tensor | None) -> Tensor:
        """vector: (B, T, K), valid: (B, T) bool or None for all -> (B, T, 1, D)."""
        token: Tensor = self.mlp(vector)
        if valid is not None:
            token = torch.where(valid.unsqueeze(-1), token, self.none)
        return token.unsqueeze(2)


class Policy(nn.Module):
    """A language-conditioned visual policy with memory. The memory is a value that callers pass and receive."""

    lowest_action: Tensor
    highest_action: Tensor

    def __init__(self, spec: PolicySpec, config: PolicyConfig) -> None:
        super().__init__()
        if not spec.cameras:
            raise UserError("the policy needs at least one camera; this spec has none")
        self.spec, self.config = spec, config
        self.known_instructions: dict[str, npt.NDArray[np.float32]] = {}
        """Embeddings that checkpoints carry, so that known instructions run without the language model."""
        width, sizes = config.width, {(camera.height, camera.width) for camera in spec.cameras}
        self.normalizer = Normalizer(spec)
        self.language = nn.Sequential(
            Mlp(config.embedding_size, 2 * config.language_size, config.language_size),
            nn.LayerNorm(config.language_size),
        )
        self.language_token = nn.Linear(config.language_size, width)
        self.vision = FilmEfficientNet(
            config.vision, config.language_size, next(iter(sizes)) if len(sizes) == 1 else None
        )
        self.camera_tokens = nn.ModuleList(
            CameraTokens(
                self.vision.num_channels,
                (
                    -(-camera.height // config.vision.reduction),
                    -(-camera.width // config.vision.reduction),
                ),
                width,
                config.tokens_per_camera,
            )
            for camera in spec.cameras
        )
        self.proprioception_tokens = nn.ModuleList(
            OptionalVector(vector.size, width) for vector in spec.proprioception
        )
        self.action_token = OptionalVector(spec.action_size, width)
        self.core = config.core.build(width, self.num_tokens)
        self.action_head = build_action_head(spec, self.core.num_outputs, width, config.head)
        for name, limit in zip(("lowest_action", "highest_action"), _limits(spec), strict=True):
            self.register_buffer(name, limit, persistent=False)

    @property
    def num_tokens(self) -> int:
        """N, tokens that the temporal core gets at a tick."""
        return (
            self.config.tokens_per_camera * len(self.spec.cameras)
            + len(self.spec.proprioception)
            + 2
        )

    @property
    def token_sources(self) -> dict[str, slice]:
        """Where the tokens of each input lie among the N of `encode`, in their order.

        Named after cameras and proprioception, then `PREVIOUS_ACTION` and `INSTRUCTION`.
        """
        sizes = {camera.name: self.config.tokens_per_camera for camera in self.spec.cameras}
        sizes |= {vector.name: 1 for vector in self.spec.proprioception}
        sources, start = {}, 0
        for name, size in (sizes | {PREVIOUS_ACTION: 1, INSTRUCTION: 1}).items():
            sources[name] = slice(start, start + size)
            start += size
        return sources

    def initial_state(self, batch_size: int) -> CoreState:
        """The memory at an episode's start."""
        return self.core.initial_state(batch_size)

    def encode(self, inputs: PolicyInputs) -> Tensor:
        """-> (B, T, N, D) tokens: of the cameras, of proprioception, of the previous action, of the instruction."""
        # Embeddings have length 1; scaled so that their values are of order 1.
        code = self.language(inputs.language * self.config.embedding_size**0.5)
        vectors = self.normalizer.normalize_proprioception(inputs.proprioception)
        tokens = [
            *self._camera_tokens(inputs.images, code),
            *(
                module(vector, inputs.proprioception_valid)
                for module, vector in zip(self.proprioception_tokens, vectors, strict=True)
            ),
            self.action_token(
                self.normalizer.normalize_actions(inputs.previous_action),
                inputs.previous_action_valid,
            ),
        ]
        ticks = inputs.previous_action.shape[1]
        tokens.append(self.language_token(code)[:, None, None].expand(-1, ticks, 1, -1))
        return torch.cat(tokens, dim=2)

    def forward(
        self,
        inputs: PolicyInputs,
        state: CoreState | None = None,
        episode_start: Tensor | None = None,
    ) -> tuple[ActionPrediction, CoreState]:
        """All ticks of the windows at once. episode_start: (B, T) bool, True resets the memory before the tick."""
        outputs, state = self.core(self.encode(inputs), state, episode_start)
        return ActionPrediction(self.action_head(outputs)), state

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[ActionPrediction, CoreState]:
        """One control tick: `inputs` with T = 1. Equals one tick of `forward`."""
        outputs, state = self.core.step(self.encode(inputs)[:, 0], state)
        return ActionPrediction(self.action_head(outputs.unsqueeze(1))), state

    def decode(self, raw: Tensor) -> Tensor:
        """raw (B, T, F) -> (B, T, A) in the spec's units, within its limits; binary dims are probabilities."""
        actions = self.normalizer.denormalize_actions(self.action_head.decode(raw))
        return actions.clamp(self.lowest_action, self.highest_action)

    def loss(
        self,
        raw: Tensor,
        actions: Tensor,
        *,
        valid: Tensor | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Part name -> scalar loss. actions: (B, T, A) in the spec's units; the rest as in `ActionHead.losses`."""
        targets = self.normalizer.normalize_actions(actions)
        return self.action_head.losses(raw, targets, valid=valid, weights=weights)

    def _camera_tokens(self, images: Mapping[str, Tensor], code: Tensor) -> list[Tensor]:
        """(B, T, K, D) for each camera. Cameras of one size pass through the network together."""
        by_size: dict[tuple[int, ...], list[int]] = {}
        for index, camera in enumerate(self.spec.cameras):
            by_size.setdefault((camera.height, camera.width), []).append(index)
        tokens: dict[int, Tensor] = {}
        for indices in by_size.values():
            stack = torch.stack(
                [images[self.spec.cameras[i].name] for i in indices], dim=1
            )  # (B, n, T, 3, H, W)
            features = self.vision(stack.flatten(0, 2), code).unflatten(0, stack.shape[:3])
            for place, index in enumerate(indices):
                of_camera = self.camera_tokens[index](
                    features[:, place].flatten(0, 1)
                )  # (B * T, K, D)
                tokens[index] = of_camera.unflatten(0, (stack.shape[0], stack.shape[2]))
        return [tokens[index] for index in range(len(tokens))]


def _limits(spec: PolicySpec) -> tuple[Tensor, Tensor]:
    """(A,) each: the least and the greatest command of every dimension."""
    parts = [part for part in spec.actions for _ in range(part.size)]
    low = [0.0 if part.kind == "binary" else part.low for part in parts]
    high = [1.0 if part.kind == "binary" else part.high for part in parts]
    return torch.tensor(low, dtype=torch.float32), torch.tensor(high, dtype=torch.float32)
