"""Every byte that reaches storage is made and read here. Pure: no I/O, no clock, no event loop.

`records` one change and one change set, `frame` a change set on disk, `segment` a file of frames, `commit` the
object that makes a checkpoint exist, `serializers` values and `schema` their types, `compression` what its name says.
"""
