"""The policy network: FiLM-EfficientNet, tokens, temporal core, action head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ttm.policy.action_head import build_action_head
from ttm.policy.cores.core import CoreState
from ttm.policy.errors import UserError
from ttm.policy.inputs import FeatureMaps, Normalizer, PolicyInputs
from ttm.policy.layers import Mlp, OptionalVector, ScalarCode
from ttm.policy.presets import PolicyConfig
from ttm.policy.relative import RelativeActions
from ttm.policy.sight import SOURCES as SIGHT_SOURCES
from ttm.policy.sight import build_sight, cell_colours, without_sight
from ttm.policy.spec import PolicySpec
from ttm.policy.vision import build_camera_tokens, shared_vision

PREVIOUS_ACTION, INSTRUCTION = "previous action", "instruction"
"""The names of two sources of tokens, beside cameras and proprioception; see `token_sources`."""
NEEDS_MEASURED = "what is measured is needed, since some parts are predicted in another form"


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
            raise UserError(
                "this spec has neither a camera nor proprioception, so the policy would see nothing; "
                "give it at least one of them"
            )
        self.spec, self.config = spec, config
        self.known_instructions: dict[str, npt.NDArray[np.float32]] = {}
        """Instruction -> embedding. Checkpoints hold these, so that known instructions run without
        the language model."""
        width = config.width
        self.relative = RelativeActions(spec, config.relative, config.absolute)
        self.normalizer = Normalizer(spec, self.relative.predicted_spec, self.relative.mask)
        self.language = nn.Sequential(
            Mlp(config.embedding_size, 2 * config.language_size, config.language_size),
            nn.LayerNorm(config.language_size),
        )
        self.language_token = nn.Linear(config.language_size, width)
        self.vision = shared_vision(spec, config)
        self.camera_tokens = build_camera_tokens(spec, config, self.vision)
        self.proprioception_tokens = nn.ModuleList(
            OptionalVector(vector.size, width) for vector in spec.proprioception
        )
        self.action_token = OptionalVector(spec.action_size, width)
        self.delay_code = ScalarCode(width) if config.longest_delay_s else None
        self.sight = build_sight(spec, config)
        self.core = config.core.build(width, self.num_tokens)
        predicted = self.relative.predicted_spec
        self.action_head = build_action_head(
            predicted, self.core.num_outputs, width, config.head, config.chunk
        )
        free = np.where(self.relative.commands_differ, np.inf, 0).astype(np.float32)
        (lowest, highest), (least, most) = spec.action_limits, predicted.action_limits
        limits = {"lowest_action": lowest, "highest_action": highest}
        limits |= {"lowest_plan": least - free, "highest_plan": most + free}
        for name, values in limits.items():
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    @property
    def num_encoded(self) -> int:
        """The tokens of a tick without those of the sight memory, as `encode` returns them."""
        cameras, vectors = len(self.spec.cameras), len(self.spec.proprioception)
        return self.config.tokens_per_camera * cameras + vectors + 2

    @property
    def num_tokens(self) -> int:
        """N, the tokens that the temporal core receives at each tick."""
        return self.num_encoded + (0 if self.sight is None else self.sight.num_tokens)

    @property
    def token_sources(self) -> dict[str, slice]:
        """The tokens of each input among the N of the core, in their order.

        The names are those of cameras and proprioception, `PREVIOUS_ACTION` and `INSTRUCTION`, and
        those of the groups of the sight memory.
        """
        sizes = {camera.name: self.config.tokens_per_camera for camera in self.spec.cameras}
        sizes |= {vector.name: 1 for vector in self.spec.proprioception}
        sizes |= {PREVIOUS_ACTION: 1, INSTRUCTION: 1}
        if self.sight is not None:
            sizes |= dict.fromkeys(SIGHT_SOURCES, self.sight.num_selectors)
        sources, start = {}, 0
        for name, size in sizes.items():
            sources[name] = slice(start, start + size)
            start += size
        return sources

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the memory at the start of an episode: that of the core and that of sight."""
        state = self.core.initial_state(batch_size)
        return state if self.sight is None else state | self.sight.initial_state(batch_size)

    def instruction_code(self, language: Tensor) -> Tensor:
        """Return the condition of vision, (B, E), given embeddings of instructions, (B, L)."""
        # Embeddings have length 1. Scaled so, their values are of order 1.
        code: Tensor = self.language(language * self.config.embedding_size**0.5)
        return code

    def encode(self, inputs: PolicyInputs) -> Tensor:
        """Return the tokens of all inputs, (B, T, `num_encoded`, D).

        The core receives these and those of the sight memory.
        """
        code = self.instruction_code(inputs.language)
        vectors = self.normalizer.normalize_proprioception(inputs.proprioception)
        tokens = [
            *(
                self._camera_tokens(inputs.images, code)
                if inputs.features is None
                else self._tokens_of_features(inputs.features)
            ),
            *(
                module(vector, inputs.proprioception_valid)
                for module, vector in zip(self.proprioception_tokens, vectors, strict=True)
            ),
            self.action_token(
                self.normalizer.normalize_executed(inputs.previous_action),
                inputs.previous_action_valid,
            ),
        ]
        ticks = inputs.previous_action.shape[1]
        instruction = self.language_token(code)[:, None, None].expand(-1, ticks, 1, -1)
        if self.delay_code is not None:
            instruction = instruction + self.delay_code(
                inputs.known_delay_s / self.config.longest_delay_s
            )
        tokens.append(instruction)
        return torch.cat(tokens, dim=2)

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
        outputs, state = self.core_outputs(inputs, state, episode_start)
        raw: Tensor = self.action_head(outputs)
        return raw, state

    def core_outputs(
        self,
        inputs: PolicyInputs,
        state: CoreState | None = None,
        episode_start: Tensor | None = None,
    ) -> tuple[Tensor, CoreState]:
        """Return the output tokens of the core, (B, T, R, D), and the new state; see `forward`."""
        outputs: Tensor
        tokens, sight = self._with_sight(
            self.encode(inputs), self.colours(inputs), state, episode_start
        )
        of_core = None if state is None else without_sight(state)
        outputs, of_core = self.core(tokens, of_core, episode_start)
        return outputs, of_core | sight

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run one control tick: `inputs` with T = 1. Equals one tick of `forward`."""
        return self.step_encoded(self.encode(inputs), self.colours(inputs), state)

    def step_encoded(
        self, encoded: Tensor, colours: FeatureMaps | None, state: CoreState
    ) -> tuple[Tensor, CoreState]:
        """Run one control tick, given what `encode` and `colours` return for it; see `step`."""
        tokens, sight = self._with_sight(encoded, colours, state)
        outputs, of_core = self.core.step(tokens[:, 0], without_sight(state))
        raw: Tensor = self.action_head(outputs.unsqueeze(1))
        return raw, of_core | sight

    def decode(self, raw: Tensor, measured: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the action of each tick, (B, T, A), the first of its chunk; see `decode_chunk`."""
        return self.command(self.decode_chunk(raw, measured)[..., 0, :], measured)

    @property
    def plan_size(self) -> int:
        """P, the values of a planned action; A where no rotation is predicted in another form."""
        return self.relative.predicted_spec.action_size

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

    def decode_chunk(self, raw: Tensor, measured: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the planned actions, (B, T, K, P), in the units of the spec and within its limits.

        raw: (B, T, K * F). Action k is that of k ticks later. Binary dimensions are the mean of their
        two commands, each weighted by its probability; where these are 0 and 1, that is the
        probability of 1. They are commands, except for parts that are predicted as positions or
        rotations, of which `command` makes some. measured: the proprioception of the ticks, name -> (B, T,
        K); it may be left out if all parts are predicted as the robot takes them.
        """
        decoded = self.action_head.decode(self.action_head.of_actions(raw))
        actions = self.normalizer.denormalize_actions(decoded)
        if self.relative:
            actions = self.relative.planned(actions, _of_chunks(measured))
        return actions.clamp(self.lowest_plan, self.highest_plan)

    def loss(
        self,
        raw: Tensor,
        actions: Tensor,
        measured: Mapping[str, Tensor] | None = None,
        *,
        valid: Tensor | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return action part -> scalar loss.

        raw: (B, T, K * F); actions: (B, T, K, P) as `decode_chunk` returns them. measured: see
        `decode_chunk`. For the other arguments see `ActionHead.losses`.
        """
        if self.relative:
            actions = self.relative.predicted(actions, _of_chunks(measured))
        targets = self.normalizer.normalize_actions(actions)
        predicted = self.action_head.of_actions(raw)
        return self.action_head.losses(predicted, targets, valid=valid, weights=weights)

    def colours(self, inputs: PolicyInputs) -> FeatureMaps | None:
        """Return what the sight memory sees of its camera; None for a policy without one."""
        if self.sight is None or inputs.colours is not None:
            return inputs.colours
        frames = inputs.images[self.spec.cameras[0].name]  # (B, T, 3, H, W)
        index = torch.arange(frames.shape[0] * frames.shape[1], device=frames.device)
        return FeatureMaps(
            cell_colours(frames.flatten(0, 1), self.sight.cells),
            index.view(frames.shape[0], frames.shape[1]),
        )

    def _with_sight(
        self,
        encoded: Tensor,
        colours: FeatureMaps | None,
        state: CoreState | None,
        episode_start: Tensor | None = None,
    ) -> tuple[Tensor, CoreState]:
        """Return all input tokens of the core, (B, T, N, D), and the new memory of sight."""
        if self.sight is None or colours is None:
            return encoded, {}
        memory = self.sight.initial_state(len(encoded)) if state is None else state
        more, memory = self.sight(colours.maps, colours.index, memory, episode_start)
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
            for place, index in enumerate(indices):
                of_camera = features[:, place].flatten(0, 1)  # (B * T, C, h, w)
                summary = self.camera_tokens[index](of_camera)  # (B * T, K, D)
                tokens[index] = summary.unflatten(0, (stack.shape[0], stack.shape[2]))
        return [tokens[index] for index in range(len(tokens))]

    def _tokens_of_features(self, features: Mapping[str, FeatureMaps]) -> list[Tensor]:
        """Return (B, T, K, D) for each camera. Each distinct map is summarised once."""
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
