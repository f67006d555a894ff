"""Kernels, each with its plain reference, usable without vLLM."""
