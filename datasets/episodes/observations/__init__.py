"""What the members of a demo's `obs` are: cameras, proprioception, or something that is not used."""
