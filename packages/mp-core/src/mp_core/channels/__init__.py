"""Pipes and queues whose messages skip the kernel's pipe, and their coroutines."""
