"""Build portfolios and labels: score arms on questions, generate questions, run resumable jobs."""
