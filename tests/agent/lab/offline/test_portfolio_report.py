"""The tables of a portfolio: each figure stands in its row and its column."""
