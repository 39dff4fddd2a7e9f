"""Makes durable handles of changes in memory, and changes of handles.

ledger            what becomes of each change set; ownership: who deletes its segment. They decide (pure)
changelog_writer  carries that out for one writer; requests: what several calls wait for
scheduler         gathers the change sets of all writers into segments: upload_queue
segment_upload    sends one segment, and again if need be; limiter holds callers back while too much is in flight
changelog_reader  turns handles into changes again
"""
