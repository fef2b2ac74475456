"""Calls that chance makes, and judges of what comes back, for `tools/fuzz.py`."""
