"""Blocks of shared memory, and the references of processes to them."""
