"""The training loop: steps, averaged weights, validation, checkpoints, resume and logs."""
