"""The events beside the lives of a simulated job: losses, sweeps and savepoints, readers and followers."""
