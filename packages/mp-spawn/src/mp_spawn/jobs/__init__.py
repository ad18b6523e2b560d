"""A job: its options, the start of its ranks, and the wait for their ends."""
