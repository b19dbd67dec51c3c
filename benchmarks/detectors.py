"""Spike detectors beside each other: false alarms, spikes found, and what a NaN or a new level does to them.

python benchmarks/detectors.py
python benchmarks/detectors.py --recorded runs/find_clip/lstm_forecast/norms.json

Simulated gradient norms are log-normal with spread σ, independent from step to step. OLMo-core's and Lightning's rules
are written anew from their descriptions: mean + 6 σ of the newest 128 values, all of them admitted; three times the
mean of the newest 10 values (a rise by rtol = 2 times the mean), flagged values not admitted.
With --recorded, the rules see norms of a real run as tools/find_clip.py leaves them, warm-up included.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paddle_stable.recipe import SpikeConfig
from paddle_stable.stability.spikes import SpikeDetector

Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SIGMAS = (0.1, 0.3, 0.6)
STEPS = 10_000
SEEDS = 20
BURST = 10
AFTER_NAN = 200
"""Steps after a NaN in which the rule is compared with itself without the NaN."""


class Rule(ABC):
    """A rule that looks at one value after the other."""

    @abstractmethod
    def flags(self, value: float) -> bool:
        """Whether this value is a spike; learns from it as the rule does."""


@final
class Ours(Rule):
    """`paddle_stable.stability.spikes` as recipes have it by default."""

    def __init__(self) -> None:
        self._detector = SpikeDetector(SpikeConfig())

    def flags(self, value: float) -> bool:
        """Values that are not finite are left to the guard: no flag, nothing learned."""
        flagged = self._detector.is_spike(value)
        self._detector.take(value)
        return flagged


@final
class MeanPlusSixSigma(Rule):
    """OLMo-core's SkipStepOptimizer: beyond mean + 6 standard deviations of the newest 128 values."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=128)

    def flags(self, value: float) -> bool:
        """From half a window on. Every value is admitted, flagged ones and NaN too."""
        flagged = False
        if len(self._newest) >= 64:
            past = np.array(self._newest)
            # Written as it is there: a comparison with NaN is false, and then the step is skipped.
            flagged = not bool(value - past.mean() <= 6.0 * past.std(ddof=1))
        self._newest.append(value)
        return flagged


@final
class TripleOfTen(Rule):
    """Lightning's SpikeDetection: risen, and by more than rtol = 2 times the mean of the newest 10 values."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=10)

    def flags(self, value: float) -> bool:
        """From the second value on. Flagged values are not admitted; what is not finite is a spike."""
        if not math.isfinite(value):
            return True
        if self._newest:
            mean = sum(self._newest) / len(self._newest)
            if value > self._newest[-1] and abs(value - mean) >= 2.0 * mean:
                return True
        self._newest.append(value)
        return False


RULES: Mapping[str, Callable[[], Rule]] = {
    "ours": Ours,
    "mean + 6 sigma of 128 (OLMo-core)": MeanPlusSixSigma,
    "3 x mean of 10 (Lightning)": TripleOfTen,
}


@final
@dataclass(frozen=True, slots=True)
class Figures:
    """What one rule did at one spread, over all seeds."""

    false_alarms: float
    """Flags per 10,000 usual steps, mean over the seeds."""
    recall: float
    """Part of single x10 spikes that were flagged."""
    burst: float
    """Part of ten x100 spikes in a row that were flagged."""
    after_nan: int
    """Most flags in a seed in the 200 steps after one NaN that the same steps do not get without it."""
    after_shift: int
    """Most flags in a seed after the level has become 5 times as high for good."""


def run(rule: Rule, values: Sequence[float] | Values) -> Flags:
    """Flag by flag over a whole course."""
    return np.array([rule.flags(float(value)) for value in values], dtype=bool)


def simulate(make: Callable[[], Rule], sigma: float, seeds: int, steps: int = STEPS) -> Figures:
    """All courses of one rule at one spread. The same seed gives every rule the same values."""
    per_seed = [
        _one_seed(make, np.exp(sigma * np.random.default_rng(seed).normal(size=steps))) for seed in range(seeds)
    ]
    return Figures(
        false_alarms=float(np.mean([f.false_alarms for f in per_seed])),
        recall=float(np.mean([f.recall for f in per_seed])),
        burst=float(np.mean([f.burst for f in per_seed])),
        after_nan=max(f.after_nan for f in per_seed),
        after_shift=max(f.after_shift for f in per_seed),
    )


def _one_seed(make: Callable[[], Rule], usual: Values) -> Figures:
    clean = run(make(), usual)
    spikes = np.arange(200, len(usual) // 2, 100)
    spiky = usual[: len(usual) // 2].copy()
    spiky[spikes] *= 10.0
    burst = usual[: 500 + BURST].copy()
    burst[500:] *= 100.0
    poisoned = usual[: 501 + AFTER_NAN].copy()
    poisoned[500] = math.nan
    after = run(make(), poisoned)[501:] & ~clean[501 : 501 + AFTER_NAN]
    shifted = usual.copy()
    shifted[len(usual) // 2 :] *= 5.0
    return Figures(
        false_alarms=float(clean.sum()) * STEPS / len(usual),
        recall=float(run(make(), spiky)[spikes].mean()),
        burst=float(run(make(), burst)[500:].mean()),
        after_nan=int(after.sum()),
        after_shift=int(run(make(), shifted)[len(usual) // 2 :].sum()),
    )


def table(seeds: int, steps: int = STEPS) -> str:
    """All rules at all spreads, as Markdown."""
    lines = [
        "| rule | sigma | false alarms per 10,000 | x10 found | of a burst | after one NaN | after a x5 shift |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, make in RULES.items():
        for sigma in SIGMAS:
            figures = simulate(make, sigma, seeds, steps)
            lines.append(
                f"| {name} | {sigma} | {figures.false_alarms:.2f} | {figures.recall:.2f} | {figures.burst:.2f} "
                f"| {figures.after_nan} | {figures.after_shift} |"
            )
    return "\n".join(lines)


def recorded(path: Path, spikes: int = 200) -> str:
    """False alarms on a real run, and how many x10 spikes put into it one at a time are found, as Markdown."""
    content = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        f"{path}: {len(content['norms'])} steps",
        "",
        "| rule | of | false alarms | x10 found |",
        "|---|---|---|---|",
    ]
    series = {of: np.array(content[of], dtype=np.float64) for of in ("norms", "losses")}
    # Before 50 values, no rule but Lightning's has seen enough to judge.
    places = np.unique(np.linspace(50, len(content["norms"]) - 1, spikes).astype(int))
    for name, make in RULES.items():
        clean = {of: run(make(), values) for of, values in series.items()}
        found = {of: _found(make, values, places) for of, values in series.items()}
        clean["either"] = clean["norms"] | clean["losses"]
        found["either"] = found["norms"] | found["losses"]
        lines += [f"| {name} | {of} | {int(clean[of].sum())} | {found[of].mean():.2f} |" for of in clean]
    return "\n".join(lines)


def _found(make: Callable[[], Rule], values: Values, places: npt.NDArray[np.int_]) -> Flags:
    """Whether a x10 spike would be flagged, for each place at which it might come."""
    return np.array([run(make(), [*values[:place], 10.0 * values[place]])[-1] for place in places], dtype=bool)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="courses per spread (%(default)s)")
    parser.add_argument("--recorded", type=Path, nargs="+", metavar="norms.json", help="norms of real runs instead")
    arguments = parser.parse_args()
    if arguments.recorded:
        print("\n\n".join(recorded(path) for path in arguments.recorded))
    else:
        print(table(arguments.seeds))


if __name__ == "__main__":
    main()
