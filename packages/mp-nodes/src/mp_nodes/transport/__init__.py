"""Messages between a driver and its agents over TCP: the meeting, the proof of the key, the records."""
