"""Memory and events that processes share: their lifetimes, errors, and who holds them."""
