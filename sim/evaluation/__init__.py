"""Success rates of policies over numbered initial states: `ttm evaluate`."""
