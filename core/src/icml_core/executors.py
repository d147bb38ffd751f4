"""Where measures run: in this process, in spawned local processes, or on a Dask cluster.

Existing engines do the work. What is added for local processes is what :mod:`concurrent.futures`
leaves to its user: when a worker dies every unfinished future breaks, so the pool is rebuilt and they
run again, the suspects one at a time; a task that kills its worker twice is an error.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

from icml_core.errors import NeedsError, UserError, install_command
from icml_core.measuring import Task, cores, perform, set_threads
from icml_core.verdicts import Outcome

Results = Iterator[tuple[Task, Outcome]]
Executor = Callable[[Sequence[Task]], Results]

KILLS = 2  # a task that killed its worker so often is given up
_LOST = ("KilledWorker", "CancelledError", "FutureCancelledError")  # errors of a worker, not of a measure
_CONNECT = 5  # seconds within which a Dask scheduler must answer


def executor(name: str) -> Executor:
    """The executor called ``in-process``, ``processes:N`` or ``dask:ADDRESS``.

    Raises:
        UserError: another name, or N is no positive integer.
        NeedsError: Dask is not installed.
    """
    kind, _, argument = name.partition(":")
    if name == "in-process":
        return in_process
    if kind == "processes":
        if not argument.isdigit() or int(argument) < 1:
            raise UserError(f"--executor {name!r}: say how many processes, such as processes:2")
        return lambda tasks: in_processes(tasks, int(argument))
    if kind == "dask" and argument:
        return lambda tasks: on_dask(tasks, argument)
    raise UserError(f"--executor {name!r} is none of in-process, processes:N, dask:ADDRESS")


def in_process(tasks: Sequence[Task]) -> Results:
    """One after the other, in this process, with all its threads; exclusive ones last."""
    for task in _exclusive_last(tasks):
        yield task, perform(task)


def in_processes(tasks: Sequence[Task], workers: int) -> Results:
    """In ``workers`` spawned processes with ``cores / workers`` threads each; exclusive ones alone."""
    shared = [task for task in tasks if not task.exclusive]
    yield from _pooled(shared, workers, max(1, cores() // workers))
    yield from _pooled([task for task in tasks if task.exclusive], 1, cores())


def on_dask(tasks: Sequence[Task], address: str) -> Results:
    """On the workers of the Dask scheduler at ``address``; exclusive ones alone, after the others.

    Measures write into temporary directories there: only their figures come back.

    Raises:
        UserError: no scheduler answers.
        NeedsError: Dask is not installed.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise NeedsError("Dask", hint=install_command("icml-core[dask]")) from error
    try:
        client = Client(address, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(f"--executor dask:{address}: no scheduler answers there ({error})") from error
    with client:
        shared = [task for task in tasks if not task.exclusive]
        alone = [task for task in tasks if task.exclusive]
        for task, outcome in _on_cluster(client, shared):
            # Dask blames every task that a dead worker held; alone it is seen which one it was.
            if (outcome.error or "").startswith(_LOST):
                print(f"a worker died during {task.label}; trying it again alone", file=sys.stderr)
                alone.append(task)
            else:
                yield task, outcome
        for task in alone:
            yield from _on_cluster(client, [task])


def _on_cluster(client: Any, tasks: Sequence[Task]) -> Results:
    """All tasks at once, as they end.

    Dask's ``client.get_executor()`` is not used: where a worker dies between the end of a task and the
    transfer of its result, that executor's future never ends.
    """
    from distributed import as_completed

    futures = {client.submit(perform, _elsewhere(task), pure=False): task for task in tasks}
    try:
        for future in as_completed(list(futures), loop=client.loop):
            try:
                outcome = future.result()
            except (Exception, CancelledError) as error:
                outcome = Outcome(error=f"{type(error).__name__}: {error}")
            yield futures.pop(future), outcome
    finally:
        client.cancel(list(futures))


def _pooled(tasks: Sequence[Task], workers: int, threads: int) -> Results:
    waiting = list(tasks)
    suspects: list[Task] = []
    kills: dict[Task, int] = {}
    while waiting or suspects:
        # A suspect runs with nobody beside it, so that a second death is certainly its own.
        window = 1 if suspects else min(workers, len(waiting))
        queue = suspects[:1] if suspects else waiting
        pool = ProcessPoolExecutor(
            window,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=set_threads,
            initargs=(threads,),
        )
        running: dict[Future[Outcome], Task] = {}
        try:
            while queue or running:
                while queue and len(running) < window:
                    running[pool.submit(perform, queue[0])] = queue[0]
                    queue.pop(0)
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    task = running.pop(future)
                    if task in suspects:
                        suspects.remove(task)
                    yield task, outcome
        except BrokenProcessPool:
            finished = {f: t for f, t in running.items() if f.done() and f.exception() is None}
            for future, task in finished.items():
                yield task, future.result()
            for future, task in running.items():
                if future in finished:
                    continue
                kills[task] = kills.get(task, 0) + 1
                if kills[task] < KILLS:
                    if task not in suspects:
                        suspects.append(task)
                    print(f"a worker died during {task.label}; trying it again alone", file=sys.stderr)
                    continue
                if task in suspects:
                    suspects.remove(task)
                yield task, Outcome(error=f"WorkerDied: {task.label} killed its worker {KILLS} times")
        finally:
            _stop(pool)


def _stop(pool: ProcessPoolExecutor) -> None:
    """Shut a pool down without waiting for a worker that is lost or still computing."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        with suppress(ValueError, OSError):
            process.terminate()
    for process in processes:
        with suppress(ValueError, AssertionError, OSError):
            process.join(5)


def _exclusive_last(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: task.exclusive)


def _elsewhere(task: Task) -> Task:
    from dataclasses import replace

    return replace(task, directory=None)
