"""The tables of a log as its database has them, and what a change of them breaks."""

import hashlib
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.script import ScriptDirectory

Tables = dict[str, Any]
"""By table: its `columns` by name, its `key`, what is `unique`, its foreign `keys`, and its `indexes`."""


def tables_of(engine: sa.Engine) -> Tables:
    """Return the tables of a database as it reports them, without that of the schema's number."""
    inspector = sa.inspect(engine)
    names = sorted(set(inspector.get_table_names()) - {"alembic_version"})
    return {name: _table(inspector, name) for name in names}


def _table(inspector: sa.Inspector, name: str) -> dict[str, Any]:
    return {
        "columns": {
            column["name"]: {
                "type": str(column["type"]),
                "null": column["nullable"],
                "default": column["default"],
            }
            for column in inspector.get_columns(name)
        },
        "key": inspector.get_pk_constraint(name)["constrained_columns"],
        "unique": sorted(one["column_names"] for one in inspector.get_unique_constraints(name)),
        "foreign": sorted(
            [one["constrained_columns"], one["referred_table"], one["referred_columns"]]
            for one in inspector.get_foreign_keys(name)
        ),
        "indexes": sorted(str(one["name"]) for one in inspector.get_indexes(name)),
    }


def migrations_of(folder: Path) -> list[dict[str, str]]:
    """Return the migrations of a folder in their order, each with the hash of its file."""
    revisions = reversed([*ScriptDirectory(str(folder)).walk_revisions()])
    return [
        {
            "revision": one.revision,
            "file": Path(one.path).name,
            "sha256": hashlib.sha256(Path(one.path).read_bytes()).hexdigest(),
        }
        for one in revisions
    ]


def broken_tables(old: Tables, new: Tables) -> list[str]:
    """Return what a reader of the log, or a migration of it, can no longer rely on, a sentence each.

    Indexes may change: they hold nothing.

    Args:
        old: Tables of the release.
        new: Tables of the present.
    """
    found = []
    for table, before in old.items():
        if (after := new.get(table)) is None:
            found.append(f"table {table}: is gone")
            continue
        for column, was in before["columns"].items():
            if (now := after["columns"].get(column)) is None:
                found.append(f"column {table}.{column}: is gone")
                continue
            found += [
                f"column {table}.{column}: has the {part} {now[part]}, and had {was[part]}"
                for part in was
                if now[part] != was[part]
            ]
        found += [
            f"column {table}.{column}: is new, not null and without a default: rows of the release have none"
            for column in sorted(after["columns"].keys() - before["columns"].keys())
            if not after["columns"][column]["null"] and after["columns"][column]["default"] is None
        ]
        for part, words in (
            ("key", "primary key"),
            ("unique", "unique columns"),
            ("foreign", "foreign keys"),
        ):
            if before[part] != after[part]:
                found.append(f"table {table}: has the {words} {after[part]}, and had {before[part]}")
    return found


def broken_migrations(old: list[dict[str, str]], new: list[dict[str, str]]) -> list[str]:
    """Return which migrations of the release are no longer as they were, a sentence each.

    Args:
        old: Migrations of the release, in their order.
        new: Migrations of the present; those after the released ones are free.
    """
    found, after = [], {one["revision"]: one for one in new}
    for was in old:
        now = after.get(was["revision"])
        if now is None:
            found.append(f"migration {was['revision']}: is gone")
        elif now["sha256"] != was["sha256"]:
            found.append(f"migration {was['revision']}: {now['file']} was edited; add a migration after it")
    released = [one["revision"] for one in old]
    order = [revision for revision in after if revision in released]
    if order != [revision for revision in released if revision in after]:
        found.append(f"the migrations have the order {', '.join(order)}, and had {', '.join(released)}")
    elif early := [revision for revision in [*after][: len(order)] if revision not in released]:
        found.append(f"migration {early[0]}: stands before the released {order[-1]}; add it after that")
    return found
