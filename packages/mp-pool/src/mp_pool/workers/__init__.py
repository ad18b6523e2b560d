"""Worker processes: how they start, what they run, the line to each of them."""
