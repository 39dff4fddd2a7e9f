"""Mirrors a state into a table elsewhere: a folder of Parquet, Delta, Iceberg, Postgres, or a target of one's own.

    mirror's log -> the table's number -> plan the next step -> read its rows -> write the step down -> rows -> done

Each step is in the mirror's log before its rows are in the table, so any process can take it again, and comes out at
the same table: `docs/decisions/mirrors-keep-a-log.md`.
"""
