"""The words of SQL text: what hides in comments and quotes is no statement."""

from __future__ import annotations

import pytest

from headwater.targets.sql.tokens import CLICKHOUSE, STANDARD, Scanner, shortened


def words(sql: str, scanner: Scanner = STANDARD) -> list[str]:
    return [one.text for one in scanner.tokens(sql)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select 1", ["SELECT", "1"]),
        ("-- COMMIT;\nselect", ["SELECT"]),
        ("/* a /* b */ COMMIT; */ select", ["SELECT"]),
        ("/* never closed; COMMIT", []),
        ("'COMMIT; it''s'", ["''"]),
        (r"E'\'; COMMIT; '", ["''"]),
        (r"'\'; COMMIT", ["''", ";", "COMMIT"]),
        ("$$; COMMIT; $$, $a$ $b$ $a$", ["''", ",", "''"]),
        ("a$b$c, $1", ["A$B$C", ",", "$", "1"]),
        ('"a""b"."select"', ['"a""b"', ".", '"select"']),
        ("é_1", ["É_1"]),
    ],
)
def test_comments_and_quotes_are_one_token_or_none(sql: str, expected: list[str]) -> None:
    assert words(sql) == expected


def test_names_lose_their_quotes() -> None:
    quoted, plain, symbol = STANDARD.tokens('"a""b" c =')
    assert (quoted.name, plain.name) == ('a"b', "C")
    assert (quoted.is_name, plain.is_name, symbol.is_name) == (True, True, False)


def test_statements_end_at_semicolons_outside_of_quotes() -> None:
    sql = "SELECT ';'; /* only; */ ; -- one;\nINSERT INTO t VALUES ($$;$$);"
    assert STANDARD.split(sql) == ["SELECT ';'", "-- one;\nINSERT INTO t VALUES ($$;$$)"]
    assert [each[0].text for each in STANDARD.statements(sql)] == [
        "SELECT",
        "INSERT",
    ]


def test_clickhouse_has_quotes_and_comments_of_its_own() -> None:
    sql = "CREATE TABLE `a;b` (x Int8); # only;\n-- this;\n SELECT 'it\\'s;', \"a\\\";\""
    assert CLICKHOUSE.split(sql) == [
        "CREATE TABLE `a;b` (x Int8)",
        "# only;\n-- this;\n SELECT 'it\\'s;', \"a\\\";\"",
    ]
    assert words("/* a /* b */ SELECT", CLICKHOUSE) == ["SELECT"]


def test_an_error_shows_sql_on_one_line() -> None:
    assert shortened("SELECT\n  1") == "SELECT 1"
    assert len(shortened("x " * 200)) == 121
