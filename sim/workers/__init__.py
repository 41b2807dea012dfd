"""Episodes as jobs for workers: in this process, in several of this machine, or on a Ray cluster."""
