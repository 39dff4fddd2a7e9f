"""The download cache: each file is downloaded once, however many backends restore from it.

`cached_files` decides which files it has, who uses them and what is evicted; `download_cache` carries that out.
"""
