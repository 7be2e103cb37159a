"""Other people's clients against a service on a socket; `make test-clients` runs them."""
