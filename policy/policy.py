"""The policy: its configuration, presets of three sizes, and the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.action_head import build_action_head
from ttm.policy.config import ActionHeadConfig, VisionConfig
from ttm.policy.cores.core import CoreConfig, CoreState
from ttm.policy.cores.registry import core_from_dict, core_to_dict
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.errors import UserError
from ttm.policy.inputs import FeatureMaps, Normalizer, PolicyInputs
from ttm.policy.language import EMBEDDING_SIZE, LANGUAGE_MODEL
from ttm.policy.layers import Mlp, OptionalVector, ScalarCode
from ttm.policy.relative import RelativeActions
from ttm.policy.sight import CELLS, SightMemory, without_sight
from ttm.policy.sight import SOURCES as SIGHT_SOURCES
from ttm.policy.spec import PolicySpec
from ttm.policy.vision import CameraTokens, FilmNetwork, build_vision

PREVIOUS_ACTION, INSTRUCTION = "previous action", "instruction"
"""The names of two sources of tokens, beside cameras and proprioception; see `token_sources`."""
NEEDS_MEASURED = "what is measured is needed, since some parts are predicted in another form"
FORMER_FIELD = "drop_connect_rate"
"""A field of `VisionConfig` that older checkpoints hold, always 0."""


@dataclass(frozen=True)
class PolicyConfig:
    """All that is needed to build the network, except for the `PolicySpec`."""

    width: int = 128
    """D, the width of all tokens."""
    tokens_per_camera: int = 6
    """K, the tokens to which the feature map of each camera is summarised."""
    sight_tokens: int = 0
    """J, the slots of the `SightMemory` of the first camera, of two tokens each; 0 for none."""
    chunk: int = 1
    """K, the actions that are predicted at each tick: its own and those of the K - 1 ticks after it."""
    relative: tuple[str, ...] = ()
    """Parts of the action that are predicted relative to what is measured; see `RelativeActions`."""
    absolute: tuple[str, ...] = ()
    """Displacements that are predicted as positions; see `RelativeActions`."""
    longest_delay_s: float = 0.0
    """The longest time until a command is in force that training knew. Above 0 it is an input."""
    language_size: int = 128
    """Width of the code of the instruction that FiLM sees."""
    image_size: int = 64
    """Pixels a side of the frames where data and robot leave it open. The spec decides."""
    language_model: str = LANGUAGE_MODEL
    """The sentence-transformers model that embeds instructions."""
    embedding_size: int = EMBEDDING_SIZE
    """L, the values of an embedding of an instruction."""
    vision: VisionConfig = field(default_factory=VisionConfig)
    core: CoreConfig = field(default_factory=TokenTuringConfig)
    head: ActionHeadConfig = field(default_factory=ActionHeadConfig)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data = {**asdict(self), "core": core_to_dict(self.core)}
        # So that other versions read the checkpoints that do without these:
        later = ("relative", "absolute", "longest_delay_s")
        return {n: x for n, x in data.items() if n not in later or x != getattr(PolicyConfig, n)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicyConfig:
        """Read the result of `to_dict`.

        Raises `TypeError` or `KeyError` if another version of the code wrote `data`.
        """
        vision = {name: data["vision"][name] for name in data["vision"] if name != FORMER_FIELD}
        parts: dict[str, Any] = {
            "vision": VisionConfig(**vision),
            "core": core_from_dict(data["core"]),
            "head": ActionHeadConfig(**data["head"]),
            "relative": tuple(data.get("relative", ())),
            "absolute": tuple(data.get("absolute", ())),
        }
        return cls(**{**data, **parts})


PRESETS: Mapping[str, PolicyConfig] = {
    "tiny": PolicyConfig(
        vision=VisionConfig(width_coefficient=0.5, depth_coefficient=1.0, reduction=8, norm="group")
    ),
    "base": PolicyConfig(
        width=256, tokens_per_camera=8, language_size=256, image_size=224,
        core=TokenTuringConfig(
            memory_size=32, process_size=16, num_layers=4, num_heads=8, mlp_size=1024
        ),
        head=ActionHeadConfig(hidden_size=512),
    ),
    "paper": PolicyConfig(
        width=512, tokens_per_camera=44, language_size=512, image_size=300,
        vision=VisionConfig(model="efficientnet-b3"),
        core=TokenTuringConfig(
            memory_size=96, process_size=16, num_layers=8, num_heads=8, mlp_size=2048
        ),
        head=ActionHeadConfig(hidden_size=512),
    ),
}  # fmt: skip
"""Name -> configuration. The names are those of `PresetName`."""


class Policy(nn.Module):
    """A language-conditioned visual policy with a temporal core of any kind.

    Without cameras in its spec it has no vision, and acts on proprioception alone. The memory is a
    value that the caller passes and receives; the module itself keeps none.
    """

    lowest_action: Tensor
    highest_action: Tensor
    lowest_plan: Tensor
    highest_plan: Tensor

    def __init__(self, spec: PolicySpec, config: PolicyConfig) -> None:
        super().__init__()
        if not spec.cameras and not spec.proprioception:
            raise UserError("this spec has neither a camera nor proprioception; give it one")
        if config.sight_tokens and not spec.cameras:
            raise UserError("a sight memory needs a camera; leave out --sight-tokens")
        self.spec, self.config, width = spec, config, config.width
        self.known_instructions: dict[str, npt.NDArray[np.float32]] = {}
        """Instruction -> embedding, in checkpoints too, so that these need no language model."""
        self.relative = RelativeActions(spec, config.relative, config.absolute)
        predicted = self.relative.predicted_spec
        self.normalizer = Normalizer(spec, predicted, self.relative.mask)
        self.language = nn.Sequential(
            Mlp(config.embedding_size, 2 * config.language_size, config.language_size),
            nn.LayerNorm(config.language_size),
        )
        self.language_token = nn.Linear(config.language_size, width)
        sizes = [(camera.height, camera.width) for camera in spec.cameras]
        self.vision: FilmNetwork | None = None  # one network for all cameras
        if sizes:
            common_size = sizes[0] if len(set(sizes)) == 1 else None
            self.vision = build_vision(config.vision, config.language_size, common_size)
        stride, tokens = config.vision.reduction, config.tokens_per_camera
        self.camera_tokens = nn.ModuleList(
            CameraTokens(
                self.vision.num_channels, (-(-h // stride), -(-w // stride)), width, tokens
            )
            for h, w in sizes
            if self.vision is not None
        )
        self.proprioception_tokens = nn.ModuleList(
            OptionalVector(vector.size, width) for vector in spec.proprioception
        )
        self.action_token = OptionalVector(spec.action_size, width)
        self.delay_code = ScalarCode(width) if config.longest_delay_s else None
        self.sight: SightMemory | None = None
        if config.sight_tokens and self.vision is not None:
            self.sight = SightMemory(width, config.sight_tokens, self.vision.early_channels)
        self.core = config.core.build(width, self.num_tokens)
        outputs = self.core.num_outputs
        self.action_head = build_action_head(predicted, outputs, width, config.head, config.chunk)
        # The code is frozen with vision, which may tell objects by it and not what to do with them.
        self.words = nn.Linear(config.embedding_size, width, bias=False)
        nn.init.zeros_(self.words.weight)
        free = np.where(self.relative.commands_differ, np.inf, 0).astype(np.float32)
        (lowest, highest), (least, most) = spec.action_limits, predicted.action_limits
        names = ("lowest_action", "highest_action", "lowest_plan", "highest_plan")
        for name, values in zip(names, (lowest, highest, least - free, most + free), strict=True):
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    @property
    def num_tokens(self) -> int:
        """N, the tokens that the temporal core receives at each tick."""
        return max(tokens.stop for tokens in self.token_sources.values())

    @property
    def token_sources(self) -> dict[str, slice]:
        """Camera, proprioception or other source -> its tokens among the N of the core, in their order."""
        sizes = {camera.name: self.config.tokens_per_camera for camera in self.spec.cameras}
        sizes |= {vector.name: 1 for vector in self.spec.proprioception}
        sizes |= {PREVIOUS_ACTION: 1, INSTRUCTION: 1}
        if self.sight is not None:
            sizes |= dict(zip(SIGHT_SOURCES, self.sight.group_sizes, strict=True))
        ends = np.cumsum(list(sizes.values())).tolist()
        return {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}

    @property
    def plan_size(self) -> int:
        """P, the values of a planned action; A where no rotation is predicted in another form."""
        return self.relative.predicted_spec.action_size

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the memory at the start of an episode: that of the core and that of sight."""
        state = self.core.initial_state(batch_size)
        return state if self.sight is None else state | self.sight.initial_state(batch_size)

    def instruction_code(self, language: Tensor) -> Tensor:
        """Return the condition of vision, (B, E), given embeddings of instructions, (B, L)."""
        # Embeddings have length 1. Scaled so, their values are of order 1.
        return self.language(language * self.config.embedding_size**0.5)

    def encode(self, inputs: PolicyInputs) -> Tensor:
        """Return the tokens of all inputs but those of the sight memory, (B, T, N, D)."""
        code = self.instruction_code(inputs.language)
        if inputs.features is None:
            tokens = self._camera_tokens(inputs.images, code)
        else:
            tokens = self._tokens_of_features(inputs.features)
        vectors = self.normalizer.normalize_proprioception(inputs.proprioception)
        for module, vector in zip(self.proprioception_tokens, vectors, strict=True):
            tokens.append(module(vector, inputs.proprioception_valid))
        executed = self.normalizer.normalize_executed(inputs.previous_action)
        tokens.append(self.action_token(executed, inputs.previous_action_valid))
        ticks = inputs.previous_action.shape[1]
        words = self.words(inputs.language * self.config.embedding_size**0.5)
        instruction = (self.language_token(code) + words)[:, None, None].expand(-1, ticks, 1, -1)
        if self.delay_code is not None:
            portion = inputs.known_delay_s / self.config.longest_delay_s
            instruction = instruction + self.delay_code(portion)
        return torch.cat([*tokens, instruction], dim=2)

    def forward(
        self,
        inputs: PolicyInputs,
        state: CoreState | None = None,
        episode_start: Tensor | None = None,
    ) -> tuple[Tensor, CoreState]:
        """Run all ticks of the windows at once.

        state: None for the start of an episode; episode_start: (B, T) bool, True where the memory
        is reset before the tick. Returns the raw predictions of the action head, (B, T, K * F), for
        `decode` and `loss`, and the new state.
        """
        tokens, sight = self.core_inputs(inputs, state, episode_start)
        outputs, of_core = self.core_outputs(tokens, state, episode_start)
        return self.action_head(outputs), of_core | sight

    def core_inputs(
        self,
        inputs: PolicyInputs,
        state: CoreState | None = None,
        episode_start: Tensor | None = None,
    ) -> tuple[Tensor, CoreState]:
        """Return all tokens of the core, (B, T, N, D), and the new memory of sight; see `forward`."""
        encoded, cells = self.encode(inputs), self.cells(inputs)
        return self._with_sight(encoded, cells, state, episode_start)

    def core_outputs(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Return the output tokens of the core, (B, T, R, D), and its new state; see `forward`."""
        of_core = None if state is None else without_sight(state)
        return self.core(tokens, of_core, episode_start)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run one control tick: `inputs` with T = 1. Equals one tick of `forward`."""
        return self.step_encoded(self.encode(inputs), self.cells(inputs), state)

    def step_encoded(
        self, encoded: Tensor, cells: FeatureMaps | None, state: CoreState
    ) -> tuple[Tensor, CoreState]:
        """Run one control tick, given `encode` and `cells` for it; see `step`."""
        tokens, sight = self._with_sight(encoded, cells, state)
        outputs, of_core = self.core.step(tokens[:, 0], without_sight(state))
        return self.action_head(outputs.unsqueeze(1)), of_core | sight

    def decode(self, raw: Tensor, measured: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the action of each tick, (B, T, A), the first of its chunk; see `decode_chunk`."""
        return self.command(self.decode_chunk(raw, measured)[..., 0, :], measured)

    def decode_chunk(self, raw: Tensor, measured: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the planned actions, (B, T, K, P), in the units of the spec and within its limits.

        raw: (B, T, K * F). Action k is that of k ticks later. Binary dimensions are the mean of their
        two commands, each weighted by its probability. measured: the proprioception of the ticks, name
        -> (B, T, K); not needed if all parts are predicted as the robot takes them.
        """
        decoded = self.action_head.decode(self.action_head.of_actions(raw))
        actions = self.normalizer.actions.denormalize(decoded)
        if self.relative:
            actions = self.relative.planned(actions, _of_chunks(measured))
        return actions.clamp(self.lowest_plan, self.highest_plan)

    def command(
        self,
        planned: Tensor,
        measured: Mapping[str, Tensor] | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """Return the command of a tick, (..., A), given what was planned for it.

        planned: (..., P), one of the actions of `decode_chunk`, or a mean of several. measured: the
        proprioception of the tick at which it is carried out, name -> (..., K). previous: the action
        before it, (..., A), which decides the sign of quaternions; None at the start of an episode.
        """
        if not self.relative.commands_differ.any():
            return planned
        assert measured is not None, NEEDS_MEASURED
        command = self.relative.command(planned, measured, previous)
        return command.clamp(self.lowest_action, self.highest_action)

    def loss(
        self,
        raw: Tensor,
        actions: Tensor,
        measured: Mapping[str, Tensor] | None = None,
        **rest: Any,
    ) -> dict[str, Tensor]:
        """Return action part -> scalar loss.

        raw: (B, T, K * F); actions: (B, T, K, P) as `decode_chunk` returns them. measured: see
        `decode_chunk`. rest: `valid` and `weights` of `ActionHead.losses`.
        """
        if self.relative:
            actions = self.relative.predicted(actions, _of_chunks(measured))
        targets = self.normalizer.actions.normalize(actions)
        predicted = self.action_head.of_actions(raw)
        return self.action_head.losses(predicted, targets, **rest)

    def cells(self, inputs: PolicyInputs) -> FeatureMaps | None:
        """Return what the sight memory sees of its camera; None for a policy without one."""
        if self.sight is None or inputs.cells is not None:
            return inputs.cells
        frames = inputs.images[self.spec.cameras[0].name]  # (B, T, 3, H, W)
        batch, ticks = frames.shape[:2]
        index = torch.arange(batch * ticks, device=frames.device).view(batch, ticks)
        return FeatureMaps(self.cells_of(frames.flatten(0, 1)), index)

    def cells_of(self, frames: Tensor) -> Tensor:
        """Return what a sight memory sees of frames (U, 3, H, W), (U, C, CELLS, CELLS)."""
        assert self.vision is not None, "a spec with cameras has vision"
        return F.adaptive_avg_pool2d(self.vision.early(frames), CELLS)

    def _with_sight(
        self,
        encoded: Tensor,
        cells: FeatureMaps | None,
        state: CoreState | None,
        episode_start: Tensor | None = None,
    ) -> tuple[Tensor, CoreState]:
        if self.sight is None or cells is None:
            return encoded, {}
        memory = self.sight.initial_state(len(encoded)) if state is None else state
        given = cells.maps, cells.index, memory, episode_start, *cells.to_write
        more, memory = self.sight(*given)
        return torch.cat([encoded, more], dim=2), memory

    def _camera_tokens(self, images: Mapping[str, Tensor], code: Tensor) -> list[Tensor]:
        """Return (B, T, K, D) for each camera. Cameras of equal size share one forward pass."""
        by_size: dict[tuple[int, ...], list[int]] = {}
        for index, camera in enumerate(self.spec.cameras):
            by_size.setdefault((camera.height, camera.width), []).append(index)
        tokens: dict[int, Tensor] = {}
        for indices in by_size.values():
            assert self.vision is not None, "a spec with cameras has vision"
            names = [self.spec.cameras[index].name for index in indices]
            stack = torch.stack([images[name] for name in names], dim=1)  # (B, n, T, 3, H, W)
            features = self.vision(stack.flatten(0, 2), code).unflatten(0, stack.shape[:3])
            for index, of_camera in zip(indices, features.unbind(1), strict=True):
                summary = self.camera_tokens[index](of_camera.flatten(0, 1))  # (B * T, K, D)
                tokens[index] = summary.unflatten(0, (stack.shape[0], stack.shape[2]))
        return [tokens[index] for index in range(len(tokens))]

    def _tokens_of_features(self, features: Mapping[str, FeatureMaps]) -> list[Tensor]:
        tokens = []
        for camera, module in zip(self.spec.cameras, self.camera_tokens, strict=True):
            given = features[camera.name]
            summary = module(given.maps.float())  # (U, K, D)
            of_ticks = summary.index_select(0, given.index.flatten())
            tokens.append(of_ticks.unflatten(0, given.index.shape))
        return tokens


def _of_chunks(measured: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return what is measured at the first tick of each chunk: name -> (B, T, 1, K)."""
    assert measured is not None, NEEDS_MEASURED
    return {name: values.unsqueeze(-2) for name, values in measured.items()}
