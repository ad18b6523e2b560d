"""Calls as they travel: tasks, their messages and options, and the functions that workers keep."""
