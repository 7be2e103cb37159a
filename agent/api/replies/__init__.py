"""Models of the replies, which document them; the handlers write them as they are."""
