"""Bases and merged change sets: what is written behind the checkpoints, so that a commit lists few files."""
