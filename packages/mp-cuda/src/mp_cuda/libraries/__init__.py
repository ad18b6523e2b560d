"""Arrays of other libraries: an adapter for each, and their reducers."""
