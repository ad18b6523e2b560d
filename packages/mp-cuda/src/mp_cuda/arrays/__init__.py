"""Arrays on a device: their memory, element types and protocols."""
