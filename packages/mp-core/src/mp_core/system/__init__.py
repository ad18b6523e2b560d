"""What needs no shared memory: the interpreter, the machine, settings, errors, and what packages register."""
