"""What targets on a database with transactions have in common: one flow, one set of statements.

`duckdb` and `postgres` derive from the classes here and add what only they do. Statements here are
written so that both databases read them: parameters are `$1`.
"""
