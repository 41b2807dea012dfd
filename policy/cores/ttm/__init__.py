"""Token Turing Machines (Ryoo et al. 2022)."""
