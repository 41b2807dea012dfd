"""`ttm data trim`, `label`, `delete` and `undo`: changes of recorded episodes that can be taken back."""
