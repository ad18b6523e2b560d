"""The engines, a file each: what places agents on nodes."""
