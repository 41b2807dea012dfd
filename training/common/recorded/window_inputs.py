"""From windows of episodes to the inputs of the network."""

from __future__ import annotations

from ttm.datasets.windows.window_dataset import WindowBatch
from ttm.policy.network.inputs import PolicyInputs


def policy_inputs(batch: WindowBatch) -> PolicyInputs:
    """Return the network's inputs for a batch of windows; nothing is hidden or augmented."""
    return PolicyInputs(
        images={name: frames.permute(0, 1, 4, 2, 3) for name, frames in batch["images"].items()},
        proprioception=batch["proprioception"],
        previous_action=batch["previous_action"],
        previous_action_valid=batch["previous_action_valid"],
        proprioception_valid=None,
        language=batch["language"],
    )
