"""The one version of all packages; `tests/packaging` compares every place that repeats it."""

__version__ = "0.1.0"
