"""Recording demonstrations of an environment's expert: `ttm collect`."""
