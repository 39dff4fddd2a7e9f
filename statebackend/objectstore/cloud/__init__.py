"""What the stores in clouds have in common: which requests are repeated, how many there are, and how long one takes."""
