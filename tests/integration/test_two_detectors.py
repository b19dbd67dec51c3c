"""Two processes with a network that has BatchNorm: given the same half batch, they do what one does with that half."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

ROOT = Path(__file__).parents[2]
Arrays = dict[str, npt.NDArray[np.float64]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arrays]:
    """Parameters, statistics, losses and norms after some steps, by process."""
    folder = tmp_path_factory.mktemp("detectors")
    script = [str(ROOT / "tests" / "integration" / "same_half_batch.py"), str(folder)]
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", str(folder / "log")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for command in ([sys.executable, *script], [sys.executable, *launcher, *script]):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
        logs = "\n".join(path.read_text() for path in sorted(folder.glob("log/workerlog.*")))
        assert done.returncode == 0, done.stderr + logs
    results: dict[str, Arrays] = {}
    for path in folder.glob("rank*.npz"):
        with np.load(path) as arrays:
            results[path.stem] = dict(arrays)
    return results


def test_two_ranks_with_the_same_half_batch_equal_one_process_with_that_half(found: dict[str, Arrays]) -> None:
    one = found["rank0of1"]
    assert sum(name.endswith("._mean") for name in one) > 10, "there are statistics"
    for rank in ("rank0of2", "rank1of2"):
        assert set(found[rank]) == set(one)
        for name, value in one.items():
            np.testing.assert_allclose(found[rank][name], value, rtol=1e-6, atol=1e-6, err_msg=f"{rank} {name}")


def test_both_processes_hold_the_same_bits(found: dict[str, Arrays]) -> None:
    for name, value in found["rank0of2"].items():
        np.testing.assert_array_equal(found["rank1of2"][name], value, err_msg=name)
