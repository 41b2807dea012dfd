"""The Temporal Latent Bottleneck (Didolkar et al. 2022)."""
