"""What we can do: retriever arms, generators, and the corpora they read."""
