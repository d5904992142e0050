"""Practice: the reader writes, the course checks."""
