"""`ttm data check`: finds every fault of every episode of a data set."""
