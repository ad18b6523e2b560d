"""The command `mp-spawn`."""
