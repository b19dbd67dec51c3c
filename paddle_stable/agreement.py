"""Whether all processes of a run are about to train the same thing: another recipe or file on one machine is a mistake.

Nothing later would notice it. Gradients of two recipes have the same shapes, and their mean is a gradient too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from paddle_stable.build import Prepared
from paddle_stable.distributed import World
from paddle_stable.errors import InputError, Problem
from paddle_stable.recipe_differences import recipe_differences


def refuse_disagreement(prepared: Prepared, world: World) -> None:
    """Raise InputError, on all processes alike, when one has another recipe or other data than rank 0. All call it."""
    if world.size == 1:
        return
    gathered = world.gather_arrays([np.array(prepared.loaded.text), np.array(_facts(prepared))])
    texts = [str(arrays[0]) for arrays in gathered]
    facts = [[str(fact) for fact in arrays[1]] for arrays in gathered]
    problems = [*_other_recipes(texts)]
    if not problems:  # another recipe has other data
        problems += _other_data(facts)
    if problems:
        raise InputError("The processes of this run do not train the same:", problems)


def _facts(prepared: Prepared) -> list[str]:
    """What came out of the data, a name and a digest each."""
    splits = {"training": prepared.splits.train, "dev": prepared.splits.dev, "test": prepared.splits.test}
    data = [f"the {name} data {split.digest()}" for name, split in splits.items() if split is not None]
    assets = [f"{name} {hashlib.sha256(text.encode()).hexdigest()}" for name, text in prepared.task.assets().items()]
    left_out = ",".join(map(str, sorted(prepared.left_out)))
    return [*data, *assets, f"stability.quarantine.file {left_out or '-'}"]


def _other_recipes(texts: Sequence[str]) -> Iterator[Problem]:
    for rank, text in enumerate(texts):
        for key, (first, here) in recipe_differences(texts[0], text).items():
            message = f"{key}: must be the same for all processes, rank 0 has {first}, rank {rank} has {here}"
            yield Problem(f"rank {rank}", 0, message)


def _other_data(facts: Sequence[Sequence[str]]) -> Iterator[Problem]:
    for rank, here in enumerate(facts):
        for name in sorted({fact.rpartition(" ")[0] for fact in set(here) ^ set(facts[0])}):
            message = (
                f"{name}: must be the same for all processes, and rank 0 has read another one. Copy the files anew"
            )
            yield Problem(f"rank {rank}", 0, message)
