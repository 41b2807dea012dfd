"""`ttm bench tick`: the time that a control tick takes on this machine."""
