"""What servers log: reading it, following it, explaining it."""
