"""The output of the ranks, and the terminal."""
