"""Objects as messages: pickled, with buffers, large bytes and definitions out of band."""
