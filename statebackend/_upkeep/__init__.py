"""Works on a job from outside: look, verify, read rows, sweep, rewrite, mind savepoints. One file for each verb.

Like `_backend/` this room puts other rooms together, but nothing stays open after a call. Only `rewrite` claims the
job; everything else works beside a running stream.
"""
