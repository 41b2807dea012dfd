"""From windows of episodes to the inputs of the network."""

from __future__ import annotations

from dataclasses import replace

from ttm.datasets.windows.window_dataset import WindowBatch
from ttm.policy.network.policy import PolicyInputs


def policy_inputs(batch: WindowBatch) -> PolicyInputs:
    """Return the network's inputs for a batch of windows, with nothing hidden and nothing
    augmented."""
    return PolicyInputs(
        images={name: frames.permute(0, 1, 4, 2, 3) for name, frames in batch["images"].items()},
        proprioception=batch["proprioception"],
        previous_action=batch["previous_action"],
        previous_action_valid=batch["previous_action_valid"],
        proprioception_valid=None,
        language=batch["language"],
    )


def at_ticks(inputs: PolicyInputs, ticks: slice) -> PolicyInputs:
    """Return the inputs at some of the T ticks, for all windows."""
    proprioception_valid = inputs.proprioception_valid
    return replace(
        inputs,
        images={name: values[:, ticks] for name, values in inputs.images.items()},
        proprioception={name: values[:, ticks] for name, values in inputs.proprioception.items()},
        previous_action=inputs.previous_action[:, ticks],
        previous_action_valid=inputs.previous_action_valid[:, ticks],
        proprioception_valid=(
            None if proprioception_valid is None else proprioception_valid[:, ticks]
        ),
    )
