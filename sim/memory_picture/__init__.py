"""Pictures of what a memory reads, writes and keeps over an episode."""
