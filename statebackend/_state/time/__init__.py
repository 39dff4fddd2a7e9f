"""Time in keyed state: the job's clock, the time-to-live of entries, and timers."""
