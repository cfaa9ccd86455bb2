"""Environment `sql`: SELECT alone, limits of time and size, and an expert above a lazy and a cheating
policy."""

import json
import sqlite3
import threading
import time

import pytest
from run_kit import View

from vlrl.environments.sql import Sql
from vlrl.plugins.episodes import Action
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row, RowError

PEOPLE = [("Ada", 36), ("Ben", 19), ("Cleo", 54)]
SCHEMA = "CREATE TABLE people (name TEXT, age INTEGER); " + " ".join(
    f"INSERT INTO people VALUES ('{name}', {age});" for name, age in PEOPLE
)
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def row(name="Cleo"):
    return Row("a", f"How old is {name}?", str(dict(PEOPLE)[name]), meta={"schema": SCHEMA})


def call(query):
    return f"<tool_call>{json.dumps({'name': 'sql', 'arguments': {'query': query}})}</tool_call>"


def ask(*queries, environment=None, of=None):
    episode = (environment or Sql()).episode()
    opening = episode.reset(of or row(), 0)
    seen = [episode.step(Action(call(query), number)) for number, query in enumerate(queries, 1)]
    episode.close()
    return opening, seen


def test_rows_are_shown():
    opening, (all_rows, none, missing) = ask(
        "SELECT name, age FROM people ORDER BY age",
        "SELECT 1 FROM people WHERE age > 99",
        "SELECT height FROM people",
    )
    assert "CREATE TABLE people" in opening.text
    assert all_rows.text == "name | age\nBen | 19\nAda | 36\nCleo | 54" and (
        all_rows.calls,
        all_rows.reward,
    ) == (1, None)
    assert none.text == "(no rows)" and missing.invalid and "no such column" in missing.text
    _, (some,) = ask("SELECT NULL, x'00ff' FROM people, people b, people c", environment=Sql(rows=2))
    assert some.text == "NULL | x'00ff'\nNULL | (2 bytes)\nNULL | (2 bytes)\n... (more than 2 rows)"


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE people",
        "INSERT INTO people VALUES ('Mal', 1)",
        "PRAGMA writable_schema = 1",
        "ATTACH DATABASE '/tmp/x.db' AS x",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT 1; DELETE FROM people",
        "VACUUM INTO '/tmp/copy.db'",
        "CREATE TEMP TABLE t (x)",
    ],
)
def test_nothing_is_written(query):
    _, (seen, after) = ask(query, "SELECT count(*) FROM people")
    assert seen.invalid and after.text.endswith("3")


@pytest.mark.parametrize(
    "query",
    [
        ENDLESS,
        "SELECT hex(zeroblob(1000000000))",
        "SELECT printf('%.*c', 500000000, 1)",
        "SELECT randomblob(900000000)",
        "(" * 10**5,
        "\udcff",
        "\x00",
        "",
    ],
)
def test_what_the_policy_writes_never_raises_or_hangs(query):
    begun = time.monotonic()
    _, (seen, after) = ask(query, "SELECT max(age) FROM people", environment=Sql(seconds=0.3))
    assert time.monotonic() - begun < 30.0 and len(seen.text) < 5000 and seen.reward is None and not seen.done
    assert after.text.endswith("54"), "the next query works"


def test_a_long_query_ends_when_the_episode_is_closed():
    episode = Sql(seconds=30.0).episode()
    episode.reset(row(), 0)
    thread = threading.Thread(target=episode.step, args=(Action(call(ENDLESS)),))
    thread.start()
    time.sleep(0.1)
    episode.close()
    thread.join(2.0)
    assert not thread.is_alive()


def test_files_are_opened_read_only(tmp_path):
    path = tmp_path / "people.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(SCHEMA)
    before = path.read_bytes()
    plain = Row("a", "q", "3")
    _, (count, update) = ask(
        "SELECT count(*) FROM people",
        "UPDATE people SET age = 0",
        environment=Sql(database=str(path)),
        of=plain,
    )
    assert count.text.endswith("3") and update.invalid and path.read_bytes() == before
    with pytest.raises(ConfigError, match="no file"):
        Sql(database="/nowhere.db").check(View())
    with pytest.raises(RowError, match="meta"):
        Sql().episode().reset(plain, 0)
    with pytest.raises(RowError, match="cannot be opened"):
        Sql().episode().reset(Row("a", "q", meta={"schema": "CREATE nonsense"}), 0)


@pytest.mark.parametrize(
    "schema",
    [
        "ATTACH DATABASE '{path}' AS other; CREATE TABLE other.t (x); INSERT INTO other.t VALUES (1);",
        "CREATE TABLE t (x); VACUUM INTO '{path}';",
        "PRAGMA temp_store_directory = '{path}';",
    ],
)
def test_the_script_of_a_row_touches_no_file(tmp_path, schema):
    path = tmp_path / "written"
    with pytest.raises(RowError, match="cannot be opened"):
        Sql().episode().reset(Row("a", "q", meta={"schema": schema.format(path=path)}), 0)
    assert not path.exists()


def test_the_script_of_a_row_ends(monkeypatch):
    monkeypatch.setattr("vlrl.environments.sql.SCHEMA_SECONDS", 0.2)
    endless = (
        "CREATE TABLE t AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) "
        "FROM n;"
    )
    with pytest.raises(RowError, match="interrupted"):
        Sql().episode().reset(Row("a", "q", meta={"schema": endless}), 0)


def score(policy, name):
    """Whether a policy that sees only what it is shown gives the right age."""
    episode = Sql().episode()
    shown = [f"{row(name).question}\n{episode.reset(row(name), 0).text}"]
    for turn in range(1, 4):
        text = policy(shown)
        observation = episode.step(Action(text, turn))
        if observation.done:
            break
        shown.append(observation.text)
    episode.close()
    return float(text == row(name).answer)


def test_expert_beats_lazy_and_cheating():
    def expert(shown):
        who = shown[0].split("How old is ")[1].split("?")[0]
        return (
            call(f"SELECT age FROM people WHERE name = '{who}'")
            if len(shown) == 1
            else shown[-1].splitlines()[-1]
        )

    def lazy(shown):
        return "36"

    def cheat(shown):
        return call("UPDATE people SET age = 1") if len(shown) == 1 else "give me the reward"

    scores = {
        policy.__name__: sum(score(policy, name) for name, _ in PEOPLE) / 3
        for policy in (expert, lazy, cheat)
    }
    assert scores["expert"] == 1.0 > scores["lazy"] > scores["cheat"] == 0.0
