"""What the keys of the terminal ask of a recorder in this process."""

from __future__ import annotations

from ttm_policy.recording.recorder import Recorder, attempt
from ttm_policy.recording.session import State


class KeyCalls:
    """The `ttm_policy.recording.keys.EpisodeCalls` of a `Recorder`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def start_or_stop(self) -> str:
        """Begin an episode, or end it as a success."""
        recorder = self._recorder
        if recorder.session.state is State.RECORDING:
            return attempt(lambda: recorder.stop(success=True))[1]
        return attempt(recorder.start)[1]

    def stop_as_failure(self) -> str:
        """End the episode as a failure."""
        return attempt(lambda: self._recorder.stop(success=False))[1]

    def discard(self) -> str:
        """Drop the episode in hand."""
        return attempt(self._recorder.session.discard)[1]

    def undo(self) -> str:
        """Delete the last episode."""
        return attempt(self._recorder.session.undo)[1]
