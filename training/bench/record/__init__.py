"""`ttm bench record`: whether the recorder keeps every frame that reaches it."""
