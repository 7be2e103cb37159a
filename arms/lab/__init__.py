"""What portfolios and labels are made of: scores of arms, made questions, jobs that run for hours."""
