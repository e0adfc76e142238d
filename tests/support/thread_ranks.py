"""Ranks in threads, as torch.distributed would connect processes."""

import threading


class ThreadRanks:
    """A process group of threads; every rank has a view of its own."""

    def __init__(self, count):
        self.slots = [None] * count
        self.barrier = threading.Barrier(count, timeout=60)

    def of(self, rank):
        """The view of one rank."""
        return _Rank(self, rank)


class _Rank:
    def __init__(self, ranks, rank):
        self._ranks = ranks
        self.rank = rank

    def all_gather(self, value):
        self._ranks.slots[self.rank] = value
        self._ranks.barrier.wait()
        values = tuple(self._ranks.slots)
        self._ranks.barrier.wait()
        return values

    def broadcast(self, value):
        return self.all_gather(value)[0]


def together(act, count):
    """Run one thread per rank; what they raised is raised here."""
    errors = []

    def guarded(rank):
        try:
            act(rank)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
