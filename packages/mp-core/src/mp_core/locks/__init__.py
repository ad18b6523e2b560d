"""Locks and conditions in shared memory, which outlive their holders."""
