"""The driver: its calls, contexts and streams, and work that finalizers leave."""
