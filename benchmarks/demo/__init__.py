"""The main job, end to end: a year of flights through a Spark stream that keeps state per aircraft, and is killed.

    python -m benchmarks.demo [--days N] [--workdir DIR]        (`nox -s demo` first installs what it needs)

In the order in which the data goes:

    flights.py    the data set as one Parquet file per day
    aircraft.py   what is kept of each aircraft, and how a day of flights changes it
    places.py     where everything lies, and the backend's settings
    job.py        the streaming process, which is killed
    events.py     what it tells, line by line
    child.py      starting it, listening to it, killing it
    acts.py       what is done to it and to its files, and what its recovery must then look like
    drive.py      the show: progress, acts, records
    verify.py     the same result by one Spark batch query, compared aircraft by aircraft
    picture.py    checkpoint time and changelog bytes for each batch
    report.py     the tables and the verdict
"""
