"""Deploy a served, proven GLM-5 to GPU hosts over SSH."""

__version__ = "0.1.0"
