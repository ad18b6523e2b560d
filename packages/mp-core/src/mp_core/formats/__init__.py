"""Types of other libraries, one module for each library; `mp_core.packages` imports it when a program has the library.

Each is an example of a codec: `init_reductions` registers a reducer for each type, and a function rebuilds it.
"""
