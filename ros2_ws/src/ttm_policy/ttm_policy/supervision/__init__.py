"""How well the ticks go, for `/diagnostics` and those who watch over the node."""
