"""The main job, end to end: a year of flights through a Spark stream with state per aircraft, which is killed.

    python -m benchmarks.demo [--days N] [--workdir DIR]        (`nox -s demo` first installs what it needs)

In the order in which the data passes:

    flights.py    the data set as one Parquet file per day
    aircraft.py   the state of each aircraft, and how a day of flights changes it
    columns.py    the same state in columns, a day at a time
    airports.py   the same state with lookups, of a service that is slow, refuses, and dies
    places.py     where everything is stored, and the backend's settings
    job.py        the streaming process, which is killed
    events.py     what it reports, line by line
    child.py      starting it, listening to it, killing it
    acts.py       what is done to it and to its files, and how its recovery must look then
    drive.py      the show: progress, acts, records
    verify.py     the same result from one Spark batch query, compared aircraft by aircraft
    picture.py    checkpoint time and changelog bytes for each batch
    report.py     the tables and the verdict
"""
