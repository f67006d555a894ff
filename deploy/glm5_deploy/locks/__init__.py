"""Locks: how they are made and compared, and the wheels that they name."""
