"""The doors for questions: chat completions, Anthropic's messages, and responses."""
