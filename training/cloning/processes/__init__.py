"""Several processes, each with a device of its own, train one policy together."""
