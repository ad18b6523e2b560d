"""`fn` and its arguments, on their way to the ranks."""
