"""Time in keyed state: the job's clock, the time-to-live of entries, and timers.

An entry has expired when `TimeToLive.is_live` in `ttl.py` says no. Which rows are late is not decided here, but in
`_processing/event_time.py`.
"""
