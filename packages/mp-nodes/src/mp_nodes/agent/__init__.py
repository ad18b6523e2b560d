"""The agent of a node: it runs the node's ranks, and tells the driver how they end."""
