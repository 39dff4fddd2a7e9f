"""Where the entries of the states lie: in dictionaries, or in RocksDB's files.

`table` defines a table; `heap` and `rocksdb_tables` are the two kinds of it. The second is made of mappings,
`rocks_mapping`, over the database, `rocksdb`, and its files, `rocksdb_files`, the only module that imports rocksdict.
`snapshot` is the entries at one moment, `rocksdb_entries` reads those of a RocksDB base. `key_groups` places keys.
"""
