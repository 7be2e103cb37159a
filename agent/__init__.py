"""What we choose: policies, the turn of one query, the service around it."""
