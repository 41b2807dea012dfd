"""The recall loss: a memory is taught, without labels, to keep what was seen."""
