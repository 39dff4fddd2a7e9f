"""The download cache: one download for each file, however many backends restore from it.

`files` decides, purely, which files it holds, who uses them, and what goes when; `cache` carries that out.
"""
