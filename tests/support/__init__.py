"""What several test modules need: carriers, tasks that run in children, fresh interpreters, leaks."""
