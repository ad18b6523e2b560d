"""The two ways to share memory, libshm and portable sharing, and their settings."""
