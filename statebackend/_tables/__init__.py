"""Where the entries of the states lie: in dictionaries, or in RocksDB's files.

`table` defines a table; `heap` and `rocksdb_tables` are the two kinds of it. `rocksdb` is the database under the second
kind, and `rocksdb_files` its files, the only module that imports rocksdict. `snapshot` is the entries at one moment,
`rocksdb_entries` reads those of a RocksDB base. `key_groups` places keys.
"""
