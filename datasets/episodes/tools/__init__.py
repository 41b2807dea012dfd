"""What `ttm data` does with episodes, a file a command."""
