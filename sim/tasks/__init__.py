"""The tasks of the simulated kitchen: one file for each task, and a table that lists them."""
