"""The memory suite: tasks that no policy can solve from what it sees when it may act."""
