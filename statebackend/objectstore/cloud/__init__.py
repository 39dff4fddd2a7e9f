"""The part that stores in all clouds share: `s3/` and `azure/` say which requests are sent, and what an answer means.

`cloud_store.py` keeps the contract of `ObjectStore`, `cloud_requests.py` sends the requests, `retrying.py` and
`limited.py` decide how often and at what rate, `settled.py` what becomes of a request whose caller gives up,
`cutting.py` sends parts.
"""
