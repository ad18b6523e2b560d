"""Worker processes: how they start, what they run, the ring to each of them."""
