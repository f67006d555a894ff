"""What can be done to a host: each stage plans its changes from facts, purely."""
