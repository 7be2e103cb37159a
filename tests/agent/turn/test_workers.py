"""Work in the background has one task per name, and ends with the service."""

import asyncio

from armwise.agent.turn import Workers


async def test_work_of_a_name_is_under_way_once_and_begins_again_when_it_has_ended() -> None:
    workers, begun, go_on = Workers(), list[int](), asyncio.Event()

    async def work() -> None:
        begun.append(1)
        await go_on.wait()

    workers.start("a", work)
    workers.start("a", work)
    workers.start("b", work)
    await asyncio.sleep(0)
    assert len(begun) == 2
    go_on.set()
    await workers.join("a", "b", "nothing of this name")
    workers.start("a", work)
    await workers.join("a")
    assert len(begun) == 3


async def test_a_service_that_stops_ends_its_work_and_begins_none() -> None:
    workers, ended = Workers(), list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("a")

    workers.start("a", work)
    await asyncio.sleep(0)
    await workers.stop()
    workers.start("a", work)
    await workers.join("b")
    assert (ended, workers.stopped) == (["a"], True)
    assert {task.get_name() for task in asyncio.all_tasks()} & {"a", "b"} == set()
