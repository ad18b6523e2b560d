"""An event loop serves requests with arrays from worker processes, while its clock goes on."""

import asyncio

import numpy as np

import mp_all as mp


def work(requests, answers) -> None:
    while (request := requests.get()) is not None:
        number, picture = request
        answers.put((number, np.sort(picture, axis=None)[picture.size // 2]))


async def clock(ticks: list[float]) -> None:
    while True:
        ticks.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)


async def main() -> None:
    spawn = mp.get_context("spawn")
    requests, answers = spawn.Queue(4), spawn.Queue()
    workers = [spawn.Process(target=work, args=(requests, answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    ticks: list[float] = []
    ticking = asyncio.create_task(clock(ticks))

    async def ask() -> None:
        for number in range(20):
            await requests.aput((number, np.full((500, 500), number)))  # waits while four requests wait

    asking = asyncio.create_task(ask())
    medians = dict([await answers.aget() for _ in range(20)])
    await asking
    assert medians == {number: number for number in range(20)}

    for _ in workers:
        await requests.aput(None)
    await asyncio.gather(*(worker.ajoin(60) for worker in workers))
    assert [worker.exitcode for worker in workers] == [0, 0]
    ticking.cancel()
    assert len(ticks) > 5
    print("20 pictures went to the workers and their medians came back; the clock went on")


if __name__ == "__main__":
    asyncio.run(main())
