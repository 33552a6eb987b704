"""Concurrent calls become batches, one at a time."""

import time

import anyio
import pytest

from opct.evals.provider import Batcher


def gather(batcher, requests, keys=None):
    """The results of concurrent calls, in order."""

    async def main():
        results = [None] * len(requests)

        async def one(i):
            results[i] = await batcher(requests[i], keys[i] if keys else None)

        async with anyio.create_task_group() as group:
            for i in range(len(requests)):
                group.start_soon(one, i)
        return results

    return anyio.run(main)


def doubling(seen, delay_s=0.0):
    def run(requests, key, on_results):
        time.sleep(delay_s)
        seen.append((key, list(requests)))
        return [2 * x for x in requests]

    return run


def test_full_batches_then_the_rest():
    seen = []
    assert gather(Batcher(doubling(seen), batch_size=4), list(range(10))) == [2 * i for i in range(10)]
    assert seen == [(None, [0, 1, 2, 3]), (None, [4, 5, 6, 7]), (None, [8, 9])]


def test_requests_of_different_keys_are_not_mixed():
    seen = []
    gather(Batcher(doubling(seen), batch_size=4), list(range(6)), list("ababab"))
    assert sorted(seen) == [("a", [0, 2, 4]), ("b", [1, 3, 5])]


def test_a_result_reaches_its_caller_before_the_batch_ends():
    got, seen = [], []

    def run(requests, key, on_results):
        for i, x in enumerate(requests):
            on_results([(i, x)])
            time.sleep(0.05)
            seen.append(list(got))
        return requests

    batcher = Batcher(run, batch_size=3)

    async def main():
        async def one(i):
            got.append(await batcher(i))

        async with anyio.create_task_group() as group:
            for i in range(3):
                group.start_soon(one, i)

    anyio.run(main)
    assert seen == [[], [1], [1, 2]], "caller 0 leads the batch to its end"
    assert got == [1, 2, 0]


def test_error_reaches_the_callers_of_its_batch_only():
    def run(requests, key, on_results):
        if 1 in requests:
            raise ValueError("bad batch")
        return requests

    batcher = Batcher(run, batch_size=2)

    async def main():
        outcomes = {}

        async def one(i):
            try:
                outcomes[i] = await batcher(i)
            except ValueError as error:
                outcomes[i] = str(error)

        async with anyio.create_task_group() as group:
            for i in range(4):
                group.start_soon(one, i)
        return outcomes

    assert anyio.run(main) == {0: "bad batch", 1: "bad batch", 2: 2, 3: 3}


@pytest.mark.parametrize("cancelled", [0, 1])
def test_cancelled_caller_leaves_the_others_running(cancelled):
    """Caller 0 leads the batch, caller 1 waits; whichever goes away, the rest get their answers."""
    batcher = Batcher(doubling([], delay_s=0.01), batch_size=8, idle_s=0.02)

    async def main():
        results = {}
        scopes = {}

        async def one(i):
            with anyio.CancelScope() as scopes[i]:
                results[i] = await batcher(i)

        async with anyio.create_task_group() as group:
            for i in range(3):
                group.start_soon(one, i)
            await anyio.sleep(0.001)
            scopes[cancelled].cancel()
        return results

    assert anyio.run(main) == {i: 2 * i for i in range(3) if i != cancelled}
