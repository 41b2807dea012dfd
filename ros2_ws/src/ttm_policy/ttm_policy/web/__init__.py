"""The web page: cameras, driving by keys, touch and gamepad, recording, and the recorded episodes."""
