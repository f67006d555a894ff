"""What happened, for people (tables, progress) and for programs (JSON, JUnit)."""
