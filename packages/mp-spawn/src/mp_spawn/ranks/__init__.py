"""One rank: what it is given, what it does, what it reports, and how it ends."""
