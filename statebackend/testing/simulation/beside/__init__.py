"""What happens to a simulated job beside its lives: losses, sweeps and savepoints, and readers."""
