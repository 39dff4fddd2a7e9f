"""The targets that are built in, each with the one library it needs."""
