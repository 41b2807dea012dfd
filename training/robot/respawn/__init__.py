"""`ttm bench respawn`: whether a policy that is killed in mid-episode goes on as if nothing had been."""
