"""What is replaced in multiprocessing, and the contexts of these packages."""
