"""The logs of decision points: beside that of the service, and never the same tables."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
import sqlalchemy as sa

from armwise.feedback.errors import StoreError
from armwise.feedback.log import Store
from armwise.feedback.log.database import open_database, point_url
from tests.feedback.conftest import decision
from tests.postgres import Server


@pytest.mark.slow
def test_the_logs_of_points_share_nothing(database_url: str) -> None:
    urls = [database_url, point_url(database_url, "news"), point_url(database_url, "a-b")]
    with ExitStack() as opened:
        stores = [opened.enter_context(closing(Store(url))) for url in urls]
        stores[1].append([decision("d1")])
        assert [store.log_seq() for store in stores] == [0, 1, 0]
        stores[0].append([decision("d1"), decision("d2")])
        assert [store.log_seq() for store in stores] == [2, 1, 0]
        assert stores[2].record("d1") is None


def test_many_processes_may_open_the_log_of_a_new_point_at_once(database_url: str) -> None:
    url = point_url(database_url, "news")
    with ThreadPoolExecutor(8) as pool:
        for store in pool.map(Store, [url] * 8):
            store.check_tables()
            store.close()


def test_the_schema_of_a_point_is_named_after_that_of_the_service(postgres: Server) -> None:
    url = postgres.fresh()
    user = sa.make_url(url).username
    with closing(Store(point_url(url, "a-b"))) as store, store.reading() as connection:
        assert connection.scalar(sa.text("SELECT current_schema()")) == f"{user}_a-b"
    postgres.drop(url)


def test_a_schema_whose_name_would_be_cut_is_refused(postgres: Server) -> None:
    url = postgres.fresh()
    name = "s" * 40
    with closing(Store(url)) as store, store.writing() as connection:
        connection.execute(sa.text(f"CREATE SCHEMA {name}"))
    inside = sa.make_url(url).update_query_dict({"options": f"-csearch_path={name}"})
    long = point_url(inside.render_as_string(hide_password=False), "p" * 32)
    with pytest.raises(StoreError, match="would have 73 bytes: at most 63 fit"):
        Store(long)
    postgres.drop(url)


@pytest.mark.parametrize("name", ["", "News", "a_b", "-a", "a" * 33, 'a"; DROP', "../a", "a/b", "a\n", "ä"])
def test_a_name_that_could_mean_something_else_is_refused(name: str) -> None:
    for url in ("sqlite:////tmp/log.db", "postgresql://ada@db/log"):
        with pytest.raises(StoreError, match="cannot name a decision point"):
            point_url(url, name)


def test_a_url_cannot_bring_in_a_name_of_its_own() -> None:
    with pytest.raises(StoreError, match="armwise_point 'a\";b' cannot name a decision point"):
        open_database("postgresql://ada@db/log?armwise_point=a%22;b")


def test_a_database_in_memory_has_no_place_for_points() -> None:
    with pytest.raises(StoreError, match="need a log in a file"):
        point_url("sqlite://", "news")
