"""Objects as messages: pickled, with buffers, large bytes and definitions beside the pickle."""
