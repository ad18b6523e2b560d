"""What a new process gets from the one that starts it, and how it ends with that."""
