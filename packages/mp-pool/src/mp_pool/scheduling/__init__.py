"""Which worker gets which task, and who receives the results."""
