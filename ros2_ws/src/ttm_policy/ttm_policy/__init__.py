"""ROS 2 nodes that translate between topics and the policy stack; no policy code lives here."""
