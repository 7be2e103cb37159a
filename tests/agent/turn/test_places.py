"""Places with a bounded queue in front of them."""

import asyncio

import pytest

from armwise.agent.turn import OverloadedError, Places


class Holder:
    """Holds a place until it is let go."""

    def __init__(self, places: Places, order: list[str], name: str) -> None:
        self.let_go = asyncio.Event()
        self._places, self._order, self._name = places, order, name

    async def run(self) -> None:
        async with self._places.hold():
            self._order.append(self._name)
            await self.let_go.wait()


async def turns_of_the_loop(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_places_are_given_in_the_order_of_asking_and_never_to_more_than_there_are() -> None:
    places, order = Places("seats", 2, 3, 60.0), list[str]()
    holders = [Holder(places, order, name) for name in "abcde"]
    tasks = [asyncio.create_task(holder.run()) for holder in holders]
    await turns_of_the_loop()
    assert order == ["a", "b"]
    for holder, held in zip(holders, ("abc", "abcd", "abcde", "abcde", "abcde"), strict=True):
        holder.let_go.set()
        await turns_of_the_loop()
        assert order == list(held)
    await asyncio.gather(*tasks)


async def test_one_more_than_may_wait_is_refused_at_once() -> None:
    places, order = Places("seats", 1, 1, 60.0), list[str]()
    holders = [Holder(places, order, name) for name in "ab"]
    tasks = [asyncio.create_task(holder.run()) for holder in holders]
    await turns_of_the_loop()
    with pytest.raises(OverloadedError, match="all seats are busy, and 1 requests are waiting"):
        await Holder(places, order, "c").run()
    for holder in holders:
        holder.let_go.set()
    await asyncio.gather(*tasks)
    assert order == ["a", "b"]


async def test_who_waits_too_long_is_refused_and_leaves_the_queue() -> None:
    places, order = Places("seats", 1, 1, 0.01), list[str]()
    first = Holder(places, order, "a")
    task = asyncio.create_task(first.run())
    await turns_of_the_loop()
    for _ in range(2):  # a second one may wait only where the first has left the queue
        with pytest.raises(OverloadedError, match=r"all seats were busy for 0\.01 s"):
            await Holder(places, order, "b").run()
    first.let_go.set()
    await task
    assert order == ["a"]


@pytest.mark.parametrize(
    ("size", "held", "spare"), [(1, 0, True), (1, 1, False), (3, 1, True), (3, 2, False)]
)
async def test_a_place_is_spare_if_another_is_free(size: int, held: int, spare: bool) -> None:
    places = Places("seats", size, 3, 60.0)
    holders = [Holder(places, [], "a") for _ in range(held)]
    tasks = [asyncio.create_task(holder.run()) for holder in holders]
    await turns_of_the_loop()
    assert places.spare is spare
    for holder in holders:
        holder.let_go.set()
    await asyncio.gather(*tasks)


async def test_no_place_is_spare_while_a_request_waits_for_one() -> None:
    places = Places("seats", 2, 3, 60.0)
    holders = [Holder(places, [], name) for name in "abc"]
    tasks = [asyncio.create_task(holder.run()) for holder in holders]
    await turns_of_the_loop()
    for holder in holders[:2]:
        holder.let_go.set()
    await asyncio.sleep(0)  # both are free now, and the third has not taken one yet
    assert not places.spare
    holders[2].let_go.set()
    await asyncio.gather(*tasks)
    assert places.spare


async def test_a_place_is_free_again_after_a_failure_and_after_a_cancellation() -> None:
    places = Places("seats", 1, 1, 60.0)
    with pytest.raises(ZeroDivisionError):
        async with places.hold():
            raise ZeroDivisionError
    order = list[str]()
    held, waiting, last = (Holder(places, order, name) for name in "abc")
    task, cancelled = asyncio.create_task(held.run()), asyncio.create_task(waiting.run())
    await turns_of_the_loop()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    held.let_go.set()
    last.let_go.set()
    await asyncio.gather(task, last.run())
    assert order == ["a", "c"]


async def test_one_key_leaves_places_and_room_in_the_queue_to_others() -> None:
    places, done = Places("seats", 2, 2, 60.0), asyncio.Event()

    async def hold(key: str | None) -> None:
        async with places.hold(key):
            await done.wait()

    held = [asyncio.create_task(hold("greedy")) for _ in range(3)]
    await turns_of_the_loop()
    with pytest.raises(OverloadedError, match="3 requests of this key"):
        await hold("greedy")
    other = asyncio.create_task(hold("other"))
    await turns_of_the_loop()
    assert not other.done(), "it waits, in the place that is left of the queue"
    done.set()
    await asyncio.gather(*held, other)
    await hold("greedy")
