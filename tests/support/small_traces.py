"""Traces in the layout of Zeus's artifact, small enough to wait for."""

import itertools

EPOCHS = {256: (20, 22), 512: (18, 19), 1024: (30, 33)}


def write_traces(folder, gpus=("v100",)):
    """Two workloads in the layout of the artifact."""
    folder.mkdir(parents=True)
    loads = (
        ("cifar100", "shufflenetv2", "adadelta", "0.6", 1.0),
        ("movielens-1m", "ncf", "adam", "0.41", 4.0),
    )
    lines = ["dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"]
    for (data, net, opt, target, _), (size, runs) in itertools.product(loads, EPOCHS.items()):
        lines += [f"{data},{net},{size},{opt},1,{n},{target},{e}" for n, e in enumerate(runs)]
    (folder / "summary_train.csv").write_text("\n".join(lines) + "\n")
    for gpu in gpus:
        lines = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
        for (data, net, opt, _, slow), size in itertools.product(loads, EPOCHS):
            for limit, factor in ((100, 1.6), (175, 1.1), (250, 1.0)):
                seconds = slow * factor * (4 + 4000 / size)
                lines.append(f"{data},{net},{size},{opt},{limit},{seconds},{0.8 * limit}")
        (folder / f"summary_power_{gpu}.csv").write_text("\n".join(lines) + "\n")
    return folder
