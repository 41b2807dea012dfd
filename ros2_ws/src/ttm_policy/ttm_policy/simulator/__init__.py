"""What `sim_node` runs: a simulated robot behind topics, and the episodes that it goes through."""
