"""Results of evaluations beside each other: `ttm compare`."""
