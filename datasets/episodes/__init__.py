"""Episodes in HDF5: reader, writer, checks, training windows."""
