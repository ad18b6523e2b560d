"""Support for the tests: carriers, tasks that run in children, fresh interpreters, leaks."""
