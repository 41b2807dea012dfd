"""Small experiments that compare the temporal cores without a robot; see `ttm study --help`."""
