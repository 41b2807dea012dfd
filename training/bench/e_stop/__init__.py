"""`ttm bench e-stop`: how soon the emergency stop of a running policy stops the robot."""
