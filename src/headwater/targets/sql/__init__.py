"""What targets on a database with transactions have in common: one flow, one set of statements.

`duckdb` and `postgres` are databases that `SqlTarget` is given. Statements here are written so that
both read them: parameters are `$1`.
"""
