"""What we remember: facts, rewards, the log, and what the log can tell."""
