"""Policies of LeRobot and robomimic, with their own pre- and post-processing, as actors.

Their checkpoints are those of their own trainers, on episodes that `ttm data convert` has written for them.
Nothing is installed for them here: run them where the other project is installed, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ttm.policy.errors import UserError, first_line
from ttm.policy.spec import Array, Observation, PolicySpec


def _load(project: str, path: str, what: str) -> Any:
    """Return a module of another project. Raises `UserError` if it is not installed."""
    try:
        return import_module(what)
    except ImportError as error:
        why = first_line(error)
        raise UserError(f"{path} needs {project} ({why}); run: pip install {project}") from error


class LerobotActor:
    """A policy of LeRobot, such as ACT, diffusion or SmolVLA.

    Cameras are its `observation.images.NAME`, and all proprioception in the order of the spec is its
    `observation.state`. Its chunk of actions begins anew when an episode begins, and at no other time.
    """

    def __init__(self, folder: str, spec: PolicySpec) -> None:
        """folder: `pretrained_model` of a checkpoint. spec: of the environment or the robot.

        Raises `UserError` for anything else, and for a policy of other observations or actions.
        """
        configs = _load("lerobot", folder, "lerobot.configs.policies")
        factory = _load("lerobot", folder, "lerobot.policies.factory")
        self._prepare = _load("lerobot", folder, "lerobot.policies.utils")
        try:
            config = configs.PreTrainedConfig.from_pretrained(folder)
            kind = factory.get_policy_class(config.type)
            self.policy = kind.from_pretrained(folder, config=config)
            device = {"device_processor": {"device": str(config.device)}}
            self._before, self._after = factory.make_pre_post_processors(
                config, pretrained_path=folder, preprocessor_overrides=device
            )
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{folder} is no policy of LeRobot ({first_line(error)})") from error
        self._cameras = {f"observation.images.{each.name}": each.name for each in spec.cameras}
        self._vectors = [each.name for each in spec.proprioception]
        unknown = set(config.input_features) - {*self._cameras, "observation.state"}
        size = config.output_features["action"].shape[0]
        if unknown or size != spec.action_size:
            raise UserError(
                f"{folder} is for another robot: it sees {', '.join(config.input_features)} and has actions "
                f"of {size}; this one has {', '.join(spec.observation_names)} and {spec.action_size}"
            )

    def reset(self, instruction: str) -> None:
        """Begin an episode."""
        self._instruction = instruction
        for each in (self.policy, self._before, self._after):
            each.reset()

    def act(self, observation: Observation) -> Array:
        """Return the action, (A,), of this tick."""
        seen = {key: np.array(observation[name]) for key, name in self._cameras.items()}
        if self._vectors:
            state = np.concatenate([observation[name] for name in self._vectors])
            seen["observation.state"] = state.astype(np.float32)
        batch = self._prepare.prepare_observation_for_inference(
            seen, self.policy.config.device, self._instruction
        )
        action = self._after(self.policy.select_action(self._before(batch)))
        return np.asarray(action[0].numpy(), np.float32)


class RobomimicActor:
    """A policy of robomimic, such as BC-RNN. Its observations have the names of the spec.

    Its recurrent state begins anew when an episode begins, and as often as its own horizon says.
    """

    def __init__(self, file: str, spec: PolicySpec) -> None:
        """file: a checkpoint, `models/*.pth`. It is unpickled: load none that you do not trust.

        spec: of the environment or the robot. Raises `UserError` for anything else, and for a policy of other
        observations or actions.
        """
        files = _load("robomimic", file, "robomimic.utils.file_utils")
        self._utils = _load("robomimic", file, "robomimic.utils.obs_utils")
        try:
            self.policy, about = files.policy_from_checkpoint(ckpt_path=file)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise UserError(f"{file} is no policy of robomimic ({first_line(error)})") from error
        shapes = about["shape_metadata"]
        self._names = list(shapes["all_shapes"])
        if (
            not set(self._names) <= set(spec.observation_names)
            or shapes["ac_dim"] != spec.action_size
        ):
            raise UserError(
                f"{file} is for another robot: it sees {', '.join(self._names)} and has actions of "
                f"{shapes['ac_dim']}; this one has {', '.join(spec.observation_names)} and {spec.action_size}"
            )

    def reset(self, instruction: str) -> None:
        """Begin an episode."""
        self.policy.start_episode()

    def act(self, observation: Observation) -> Array:
        """Return the action, (A,), of this tick."""
        seen = {name: np.array(observation[name]) for name in self._names}
        action: Array = self.policy(self._utils.process_obs_dict(seen))
        return action
