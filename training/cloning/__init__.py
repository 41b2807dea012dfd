"""`ttm train`: behaviour cloning."""
