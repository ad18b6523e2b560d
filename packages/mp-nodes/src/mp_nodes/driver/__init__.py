"""The program that calls `run` or `start_processes`: it decides for all nodes."""
