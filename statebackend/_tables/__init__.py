"""Where the entries of the states lie: in dictionaries, or in RocksDB's files.

`table` says what a table is, `heap` and `rocksdb_tables` are the two kinds, `rocksdb` is the database under the second
and the one door to rocksdict. `key_groups` places keys.
"""
