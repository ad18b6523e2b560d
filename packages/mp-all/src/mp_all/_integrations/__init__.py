"""Parts that need a library which mp-all does not install: joblib or cloudpickle.

Nothing imports them before it is used.
"""
