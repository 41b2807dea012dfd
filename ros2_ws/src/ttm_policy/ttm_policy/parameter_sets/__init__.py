"""Parts of what `ttm_policy.parameters` declares: limits, what nodes share, and how all are declared."""
