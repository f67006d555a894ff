"""How servers are: their unit, health, GPUs and load."""
