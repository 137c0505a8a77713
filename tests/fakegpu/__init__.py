"""A GPU that is not there, for tests of device handling on machines without one: `device.py`, `commands.py`."""
