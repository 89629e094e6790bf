"""Fuzzing of the decoders and the wire parser: any bytes give values or a coded error.

`targets` says what must hold, `seeds` where mutation begins, `__main__` runs it all for a while
(`make fuzz`). Inputs that once found something are kept in `kept/`; `test_kept` tries them always.
"""
