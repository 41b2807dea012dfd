"""`ttm bench drift`: whether a memory drifts over episodes much longer than those trained on."""
