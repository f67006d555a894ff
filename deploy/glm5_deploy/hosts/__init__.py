"""Everything that reaches a host: typed commands, the SSH connection, rsync, facts."""
