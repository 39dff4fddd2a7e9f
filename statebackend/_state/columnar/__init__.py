"""The kind of state that has a row of columns for each key, to be read and written by whole batches."""
