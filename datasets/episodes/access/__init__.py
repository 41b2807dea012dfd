"""Safe access to HDF5 files that others wrote: what may be opened, followed and read."""
