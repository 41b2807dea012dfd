"""Recorded episodes as inputs of a policy, and the errors of its actions on them."""
