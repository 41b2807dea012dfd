"""Files that the simulation ships with."""
