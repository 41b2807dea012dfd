"""The Token Turing Machine (Ryoo et al. 2022)."""
