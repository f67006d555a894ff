"""Whether a GGUF model fits on a host's GPUs, from its header and the profile alone."""
