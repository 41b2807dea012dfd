"""`ttm data play`: an episode as a film of its cameras, its action and its proprioception."""
