"""`ttm contract check`: compare a contract with the topics of a running robot."""
