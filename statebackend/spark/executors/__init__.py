"""`execution="executors"`: the work of a batch as one Spark job, of one task for each range of key groups with rows.

`batch_job.py` runs that job in the driver, `placement.py` says which rows go to which task, `worker.py` is the task,
in a Python process of an executor, and `pickling.py` turns what is sent there into bytes.
"""
