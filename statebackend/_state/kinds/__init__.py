"""The kinds of state, but for columns: one module each, and what they share."""
