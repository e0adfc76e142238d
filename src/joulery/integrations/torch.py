"""Data loaders of torch whose batch size and power limit are chosen over recurring trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.errors import MissingExtraError
from joulery.training import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class EnergyDataLoader:
    """A ``torch.utils.data.DataLoader`` that is also a ``joulery.Run``.

    Loops written for the loader of Zeus (You et al., NSDI'23, Listing 1) work as they are::

        train_loader = EnergyDataLoader(train_set, batch_size, max_epochs, target_metric,
                                        name="nightly", batch_sizes=[64, 128, 256])
        eval_loader = EnergyDataLoader(eval_set, batch_size)
        for epoch in train_loader.epochs():
            for batch in train_loader:
                ...
            for batch in eval_loader:
                ...
            train_loader.report_metric(validation_metric)

    Where torch.distributed is initialised, batch sizes count all ranks together: every rank loads
    its share, by a ``DistributedSampler`` unless you pass a sampler of your own.

    Args:
        dataset: Dataset to load from.
        batch_size: Batch size that you would run, over all ranks; of a loader for evaluation, the
            one that is run.
        max_epochs: Epochs after which training gives up; makes it a loader for training.
        target_metric: Validation metric that ends training.
        name: Name of the job that recurs.
        batch_sizes: Batch sizes to choose from; without them only the power limit is tuned.
        run: Run of your own, in place of all the above but the dataset.
        options: Options of the DataLoader, all but ``batch_size``.

    Raises:
        InvalidValueError: An argument is invalid.
    """

    def __init__(  # noqa: PLR0913 - the first four are those of the loader that this one replaces
        self,
        dataset: Any,
        batch_size: int | None = None,
        max_epochs: int | None = None,
        target_metric: float | None = None,
        *,
        name: str = "",
        batch_sizes: Sequence[int] | None = None,
        run: Run | None = None,
        **options: Any,
    ) -> None:
        self.dataset = dataset
        self._size = batch_size
        self._options = options
        self._loader: Any = None
        self._loader_size: int | None = None
        self._epoch = 0
        self._distributed = _distributed()
        self.run = run
        if run is None and (max_epochs is not None or batch_sizes is not None):
            self.run = Run(
                name,
                batch_sizes=batch_sizes,
                default_batch_size=batch_size,
                target=target_metric,
                max_epochs=max_epochs,
                process_group=_group(self._distributed),
            )

    def epochs(self) -> Iterator[int]:
        """Epochs from 0, until the target is reached, the cost limit is, or they are over."""
        if self.run is None:
            return
        for epoch in self.run.epochs():
            self._epoch = epoch
            yield epoch

    def attempts(self) -> Iterator[int]:
        """See ``joulery.Run.attempts``; the batch size follows by itself."""
        if self.run is not None:
            yield from self.run.attempts()

    def report_metric(self, metric: Any, higher_is_better_metric: bool | None = None) -> None:  # noqa: FBT001 - as the loader that this one replaces
        """Report the validation metric of this epoch; training ends once the target is reached."""
        if self.run is not None:
            self.run.report(metric, higher_is_better=higher_is_better_metric)

    @property
    def batch_size(self) -> int | None:
        """Samples per step of this process."""
        size = self._size if self.run is None else self.run.batch_size or self._size
        if size is None or self._distributed is None:
            return size
        return max(1, size // int(self._distributed.get_world_size()))

    def __iter__(self) -> Iterator[Any]:
        loader = self._current()
        sampler: Any = getattr(loader, "sampler", None)
        if self.run is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self._epoch)  # else every epoch has the same order
        return iter(loader) if self.run is None else self.run.steps(loader)

    def __len__(self) -> int:
        return len(self._current())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._current(), name)

    def _current(self) -> Any:
        """The loader of torch for the batch size that is run now."""
        size = self.batch_size
        if self._loader is None or size != self._loader_size:
            self._loader, self._loader_size = self._make(size), size
        return self._loader

    def _make(self, size: int | None) -> Any:
        from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

        options = dict(self._options)
        sampler = options.get("sampler") or options.get("batch_sampler")
        if (
            self._distributed is not None
            and not sampler
            and not isinstance(self.dataset, IterableDataset)
        ):
            shuffle = bool(options.pop("shuffle", False))
            options["sampler"] = DistributedSampler(self.dataset, shuffle=shuffle)
        if options.get("batch_sampler") is None:
            options["batch_size"] = size or 1
        return DataLoader(self.dataset, **options)


def _distributed() -> Any:
    """torch.distributed where several ranks train together, else None."""
    try:
        from torch import distributed
    except ImportError:
        raise MissingExtraError("loaders of torch need torch", remedy="pip install torch") from None
    several = distributed.is_available() and distributed.is_initialized()
    return distributed if several and distributed.get_world_size() > 1 else None


def _group(distributed: Any) -> Any:
    if distributed is None:
        return None
    from joulery.integrations.torch_ranks import torch_ranks

    return torch_ranks()
