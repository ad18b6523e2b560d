"""Types of other libraries, one module for each library; imported when a program imports the library.

Each is an example of a codec: `init_reductions` registers a reducer for each type, and a function rebuilds it.
"""
