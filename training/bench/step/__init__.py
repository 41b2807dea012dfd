"""`ttm bench step`: the time that a training step on whole episodes takes on this machine."""
