"""What operators do: arms, versions, evaluations, warm starts, exports, keys."""
