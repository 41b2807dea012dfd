"""`ttm bench loader`: how fast batches of training windows are made on this machine."""
