"""What can be done to a host: each stage plans from facts (pure) and applies one change at a time."""
