"""Carrying a plan out: over many hosts, under a lock, with an audit log and a way back."""
