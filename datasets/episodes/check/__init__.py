"""`ttm data check`: the faults of recorded episodes."""
