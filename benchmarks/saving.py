"""What a save costs training, and what reading it back costs, beside paddle.save and paddle.load of the same state.

python benchmarks/saving.py
python benchmarks/saving.py --sizes small --repeats 3

The state is a Transformer encoder's with AdamW's moments: `small` (two layers of 64) and `nano`, in the shapes of ERNIE
3.0 nano (a vocabulary of 40,000, four layers of 312), 215 MB. All figures of a size come from one process, turn about,
and the table shows medians and ratios of medians:

blocking        how long `Trainer.save` keeps training: copy to host memory and the look for NaN
written         until the checkpoint has its name, hashed and flushed to the disk; this is in the background
load, verified  read, hashed, and looked over for NaN; `load` without that, as after a verification

paddle.save neither flushes nor hashes, and paddle.load runs pickle. Targets: blocking at most 0.3 times paddle.save,
verified load at most once paddle.save, load at most once paddle.load.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import paddle

from paddle_stable.background_saving import BackgroundSaving
from paddle_stable.checkpoint import CheckpointParts, CheckpointStore
from paddle_stable.training_state import model_arrays, optimizer_arrays
from paddle_stable.writers import NoRecord

TARGETS = {
    ("blocking", "paddle.save"): 0.3,
    ("load, verified", "paddle.save"): 1.0,
    ("load", "paddle.load"): 1.0,
}


@final
@dataclass(frozen=True, slots=True)
class Size:
    """A Transformer encoder."""

    vocabulary: int
    layers: int
    hidden: int


SIZES = {"small": Size(1000, 2, 64), "nano": Size(40_000, 4, 312)}


class Encoder(paddle.nn.Layer):
    """Embeddings and encoder; what it computes does not matter here."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = paddle.nn.Embedding(size.vocabulary, size.hidden)
        self.positions = paddle.nn.Embedding(2048, size.hidden)
        layer = paddle.nn.TransformerEncoderLayer(size.hidden, size.hidden // 26 or 1, 4 * size.hidden, dropout=0.0)
        self.encoder = paddle.nn.TransformerEncoder(layer, size.layers)

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Mean of the encoded tokens."""
        places = paddle.arange(tokens.shape[1])
        return self.encoder(self.embedding(tokens) + self.positions(places)).mean()


@final
class Bench:
    """One state, saved and loaded in both ways."""

    def __init__(self, size: Size, folder: Path) -> None:
        self._model = Encoder(size)
        self._optimizer = paddle.optimizer.AdamW(1e-3, parameters=self._model.parameters())
        self._train()
        self._store = CheckpointStore(folder / "ours", keep_last=1)
        self._saving = BackgroundSaving(self._store)
        self._theirs = folder / "theirs"
        self._step = 0
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    @property
    def megabytes(self) -> float:
        """Size of the state."""
        parts = self._parts()
        return sum(array.nbytes for part in (parts.model, parts.optimizer) for array in part.values()) / 1e6

    def once(self) -> None:
        """Save and load once in each way, on a state that has moved since."""
        self._step += 1
        self._train()
        self._timed("paddle.save", self._save_theirs)
        started = time.perf_counter()
        self._timed("blocking", self._begin)
        self._saving.finish()
        self._seconds["written"].append(time.perf_counter() - started)
        path = self._store.folder / f"step-{self._step:06d}"
        self._timed("paddle.load", self._load_theirs)
        self._timed("load", lambda: self._store.load(path, verify=False))
        self._timed("load, verified", lambda: self._store.load(path))

    def medians(self) -> dict[str, float]:
        """Seconds by what was done; the first turn, in which files and memory are new, is left out."""
        return {name: median(values[1:]) for name, values in self._seconds.items()}

    def _timed(self, name: str, act: Callable[[], object]) -> None:
        started = time.perf_counter()
        result = act()
        self._seconds[name].append(time.perf_counter() - started)
        del result

    def _train(self) -> None:
        self._model(paddle.randint(0, 1000, [1, 16])).backward()
        self._optimizer.step()
        self._optimizer.clear_grad()

    def _parts(self) -> CheckpointParts:
        memory = self._saving.memory()
        model = model_arrays(self._model, memory)
        optimizer = optimizer_arrays(self._optimizer, self._model, memory)
        return CheckpointParts(model=model, optimizer=optimizer, state={}, assets={})

    def _begin(self) -> None:
        self._saving.begin(self._step, self._parts(), best=False, records=NoRecord())

    def _save_theirs(self) -> None:
        paddle.save(self._model.state_dict(), str(self._theirs / "model.pdparams"))
        paddle.save(self._optimizer.state_dict(), str(self._theirs / "optimizer.pdopt"))

    def _load_theirs(self) -> object:
        return paddle.load(str(self._theirs / "model.pdparams")), paddle.load(str(self._theirs / "optimizer.pdopt"))


def table(name: str, megabytes: float, seconds: dict[str, float], repeats: int) -> str:
    """Seconds, and the ratios that have a target, as Markdown."""
    lines = [
        f"{name}: {megabytes:.1f} MB, medians of {repeats}, OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}",
        "",
        "| what | seconds | x paddle.save | x paddle.load | target |",
        "|---|---|---|---|---|",
    ]
    for what, value in seconds.items():
        targets = [
            f"<= {most:g} x {peer}: {'met' if value <= most * seconds[peer] else 'missed'}"
            for (ours, peer), most in TARGETS.items()
            if ours == what
        ]
        ratios = " | ".join(f"{value / seconds[peer]:.2f}" for peer in ("paddle.save", "paddle.load"))
        lines.append(f"| {what} | {value:.4f} | {ratios} | {' '.join(targets)} |")
    return "\n".join(lines)


def main() -> None:
    """Print a table a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="(%(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="turns that count (%(default)s)")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; a temporary one by default")
    arguments = parser.parse_args()
    for name in arguments.sizes:
        folder = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            bench = Bench(SIZES[name], folder)
            for _ in range(arguments.repeats + 1):
                bench.once()
            print(table(name, bench.megabytes, bench.medians(), arguments.repeats), end="\n\n", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
