"""`ttm data pack`: a copy of a data set with its frames at the size of a training."""
