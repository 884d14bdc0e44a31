"""A rank: runs the requested cases, and answers with each one's traceback, or "" for success."""

import datetime
import importlib
import json
import os
import sys
import traceback
import warnings

import torch
import torch.distributed as dist


def main(requests: int, answers: int, store: str, rank: int, size: int, timeout: float) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout),
    )
    importlib.import_module("torchlayers")
    importlib.import_module("torch.distributed.tensor")
    os.write(answers, json.dumps("").encode() + b"\n")  # ready
    with open(requests) as lines:
        for line in lines:
            module, name, *args = json.loads(line)
            failure = ""
            try:
                torch.manual_seed(0)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FutureWarning)  # names that torch renames
                    getattr(importlib.import_module(module), name)(*args)
            except BaseException:
                failure = traceback.format_exc()
            os.write(answers, json.dumps(failure).encode() + b"\n")
    os._exit(0)  # without waiting for the other ranks


if __name__ == "__main__":
    _, requested, answered, path, own_rank, world, seconds = sys.argv
    main(int(requested), int(answered), path, int(own_rank), int(world), float(seconds))
