"""Messages about a run: to whom, and their delivery."""
