"""What happens to a job under Paddle's launcher when a process fails, hangs, is killed or told to stop."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paddle_stable.launching import PADDLE_LAUNCHER

from .conftest import ROOT, Train, curve, final_digest
from .test_train import wait_for_steps

STEPS: dict[str, Any] = {"run__steps": 40, "run__log_every": 1, "run__eval_every": 10, "data__batch_size": 16}

MISHAPS = """
import os, signal, threading
from pathlib import Path
from paddle_stable.tasks import lstm

class Unlucky(lstm.LstmForecast):
    '''Rank 1 is killed in the middle of its 14th step, and hangs in the 9th that the second attempt does; or it is told
    to stop in its 7th.'''
    _losses = 0
    def loss(self, model, batch):
        loss = super().loss(model, batch)
        Unlucky._losses += 1
        folder = Path(__file__).parent
        if os.environ.get("PADDLE_TRAINER_ID") == "1" and "UNLUCKY" in os.environ:
            if Unlucky._losses == 14 and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if Unlucky._losses == 9 and (folder / "killed").exists() and not (folder / "hung").exists():
                (folder / "hung").touch()
                threading.Event().wait()
        if os.environ.get("PADDLE_TRAINER_ID") == "1" and "TOLD" in os.environ and Unlucky._losses == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss
"""


def test_a_killed_and_then_hanging_job_comes_back_and_ends_bit_for_bit_like_the_uninterrupted_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "unlucky.py").write_text(MISHAPS, encoding="utf8")
    train = Train(tmp_path)
    values = {**STEPS, "task__target": "unlucky.Unlucky", "task__dropout": 0.2, "run__hang_timeout": 20}
    runs, processes = {}, []
    for name, mishaps in (("broken", {"UNLUCKY": "1"}), ("whole", {})):
        runs[name] = tmp_path / name
        command = train.command("--trust", ranks=2, run__output_dir=str(runs[name]), **values)
        command[1:3] = [str(ROOT / "tools" / "launch.py")]  # instead of -m paddle.distributed.launch
        command[command.index("--log_dir") + 1] = str(tmp_path / f"log-{name}")
        processes.append(
            subprocess.Popen(
                command,
                env={**train.environment, **mishaps},
                cwd=tmp_path,
                text=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        )
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "hung").exists()
    restarts = re.findall(r"launch: (.*?)(?: \(the launcher.*)?; starting again", said[0])
    assert restarts == ["processes were killed", "the run ended with 4 (hang)"]
    stacks = [(runs["broken"] / f"hang-rank-{rank}.txt").read_text(encoding="utf8") for rank in (0, 1)]
    assert "in backward" in stacks[0]  # it waits for the other's gradients, in native code
    assert "in loss" in stacks[1]
    assert final_digest(runs["broken"]) == final_digest(runs["whole"])
    assert curve(runs["broken"]) == curve(runs["whole"])


def test_a_process_that_fails_is_heard_and_its_code_passes_the_launcher(train: Train, tmp_path: Path) -> None:
    """The launcher shows rank 0 only, which waits for an answer: the words of rank 1 have to come through it."""
    done = train(ranks=2, faults=[{"step": 15, "kind": "raise", "rank": 1}], **STEPS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Another process of this run has ended: step 15 failed with InjectedError" in done.stdout
    record = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))
    assert (record["code"], record["retry"]) == (1, False)
    assert "series.csv:" in record["reason"]


def test_a_signal_to_the_job_saves_once_and_another_number_of_processes_goes_on(train: Train, tmp_path: Path) -> None:
    """The launcher sends it three times, to every process group."""
    run = tmp_path / "run"
    long = {**STEPS, "run__steps": 2000, "run__eval_every": 2000, "task__dropout": 0.0}
    launcher = subprocess.Popen(
        train.command(ranks=2, **long), env=train.environment, cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_for_steps(run, launcher)
    launcher.send_signal(signal.SIGTERM)
    said = launcher.communicate()[0]
    assert launcher.returncode == 15, said
    record = json.loads((run / "exit.json").read_text(encoding="utf8"))
    assert (record["code"], record["retry"]) == (75, True)
    [checkpoint] = (run / "checkpoints").glob("step-*")
    assert checkpoint.name == f"step-{record['step']:06d}"

    other_windows = train("--resume", "auto", **long)
    assert other_windows.returncode == 2
    assert "another order of samples (samples a step 32 → 16)" in other_windows.stderr
    step = record["step"]
    # An epoch and more behind it, by one process with the same windows, against the same process from the beginning.
    same_windows = {**long, "data__batch_size": 32, "run__eval_every": step + 15, "run__save_every": step + 15}
    resumed = train("--resume", "auto", **same_windows, faults=[{"step": step + 16, "kind": "raise"}])
    alone = train(
        run__output_dir=str(tmp_path / "alone"), **same_windows, faults=[{"step": step + 16, "kind": "raise"}]
    )
    assert (resumed.returncode, alone.returncode) == (1, 1)  # stopped there by the fault
    points = [[p for p in curve(folder) if p[0] == "train/loss"] for folder in (run, tmp_path / "alone")]
    assert [p[1] for p in points[0]] == [p[1] for p in points[1]] == list(range(1, step + 16))
    assert [p[2] for p in points[0]] == pytest.approx([p[2] for p in points[1]], rel=1e-4)
    assert "results will not be bit-identical" in (run / "run.log").read_text(encoding="utf8")


def test_a_signal_to_one_process_stops_all_after_the_same_step(tmp_path: Path) -> None:
    (tmp_path / "unlucky.py").write_text(MISHAPS, encoding="utf8")
    train = Train(tmp_path)
    command = train.command("--trust", ranks=2, **STEPS, task__target="unlucky.Unlucky")
    environment = {**train.environment, "TOLD": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 75, done.stdout  # the launcher's, because both have left with it
    record = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))
    assert record["code"] == 75
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == ["step-000008"]


def test_two_nodes_train_like_two_processes_on_one_and_all_roll_back_whichever_met_the_nan(
    train: Train, tmp_path: Path
) -> None:
    """Two launchers, as on two machines, on the loopback interface; the NaN is met by another process in each run."""
    rollback = {
        **STEPS,
        "stability__max_consecutive_skips": 3,
        "stability__recovery__snapshot_every": 5,
        "stability__recovery__healthy_steps": 2,
    }
    met = {rank: [{"step": 14, "steps": 3, "kind": "nan_loss", "rank": rank}] for rank in (0, 1)}
    port = _free_port()
    runs = {name: tmp_path / name for name in ("nodes", "one")}
    processes = []
    for rank in (0, 1):
        command = train.command(ranks=2, run__output_dir=str(runs["nodes"]), faults=met[1], **rollback)
        place = command.index("--nproc_per_node")
        command[place : place + 2] = ["--nnodes", "2", "--master", f"127.0.0.1:{port}", "--rank", str(rank)]
        command[place:place] = ["--nproc_per_node", "1"]
        command[command.index("--log_dir") + 1] = str(tmp_path / f"log-{rank}")
        processes.append(subprocess.Popen(command, env=train.environment, cwd=tmp_path, stdout=subprocess.DEVNULL))
    one = train(ranks=2, run__output_dir=str(runs["one"]), faults=met[0], **rollback)
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    assert one.returncode == 0, one.stdout
    assert final_digest(runs["nodes"]) == final_digest(runs["one"])
    assert curve(runs["nodes"]) == curve(runs["one"])
    assert ("stability/rollbacks", 40, 1.0) in curve(runs["nodes"])


def test_a_killed_launcher_takes_its_processes_with_it_and_the_run_comes_back(tmp_path: Path) -> None:
    train = Train(tmp_path)
    values = {**STEPS, "run__steps": 200, "run__eval_every": 100, "run__save_every": 20}
    command = train.command(ranks=2, run__output_dir=str(tmp_path / "run"), **values)
    command[1:3] = [str(ROOT / "tools" / "launch.py")]
    watcher = subprocess.Popen(command, env=train.environment, cwd=tmp_path, text=True, stderr=subprocess.PIPE)
    while not any((tmp_path / "run" / "checkpoints").glob("step-*")) and watcher.poll() is None:
        time.sleep(0.05)
    [launcher] = Path(f"/proc/{watcher.pid}/task/{watcher.pid}/children").read_text().split()
    os.kill(int(launcher), signal.SIGKILL)
    said = watcher.communicate(timeout=300)[1]
    assert watcher.returncode == 0, said
    assert "starting again with --resume auto" in said
    assert curve(tmp_path / "run")[-1][1] == 200
    assert json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))["code"] == 0


def nodes(train: Train, folder: Path, *different: str, apart: bool = False) -> list[subprocess.CompletedProcess[str]]:
    """Two launchers as on two machines, the second one's training with these arguments besides.

    Apart: each with a run folder of its own, as where machines share no file system.
    """
    port = _free_port()
    processes = []
    for rank in (0, 1):
        command = train.command(ranks=2, **STEPS)
        options = command.index("--nproc_per_node")
        command[options + 1] = "1"
        command[options:options] = ["--nnodes", "2", "--master", f"127.0.0.1:{port}", "--rank", str(rank)]
        command[command.index("--log_dir") + 1] = str(folder / f"log-{rank}")
        # The last of several -o for a key counts, so that they have to stand behind those of the run.
        command += [argument for argument in different if rank]
        place = folder
        if apart:
            command += ["-o", "run.output_dir=run"]
            place = folder / f"machine-{rank}"
            place.mkdir()
        processes.append(
            subprocess.Popen(
                command, env=train.environment, cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
    said = [process.communicate(timeout=300)[0] for process in processes]
    return [subprocess.CompletedProcess([], p.returncode, out) for p, out in zip(processes, said, strict=True)]


def test_two_machines_with_different_recipes_do_not_train(train: Train, tmp_path: Path) -> None:
    for node in nodes(train, tmp_path, "-o", "optim.lr=0.125"):
        assert node.returncode == 2, node.stdout
        assert "The processes of this run do not train the same" in node.stdout
        assert re.search(r"rank 1  optim\.lr: must be the same .* rank 1 has 0\.125", node.stdout)
    assert not (tmp_path / "run").exists()


def test_two_machines_without_a_common_run_folder_do_not_train(train: Train, tmp_path: Path) -> None:
    """The second one would neither find the best checkpoint nor hear of the end of the first."""
    first, second = nodes(train, tmp_path, apart=True)
    assert [first.returncode, second.returncode] == [2, 2], first.stdout + second.stdout
    assert "run.output_dir: another process does not see the folder of rank 0" in first.stdout
    assert "run.output_dir: rank 1 does not see the folder of rank 0" in second.stdout


def test_a_mistake_in_the_recipe_of_one_machine_ends_the_run_on_both(train: Train, tmp_path: Path) -> None:
    first, second = nodes(train, tmp_path, "-o", "optim.lr=-1")
    assert [first.returncode, second.returncode] == [2, 2], first.stdout + second.stdout
    assert "Another process of this run has found a mistake in the recipe; it says which" in first.stdout
    assert "optim.lr: must be > 0, got -1" in second.stdout


def test_a_process_whose_peer_never_comes_says_for_whom_it_waits_and_leaves(tmp_path: Path) -> None:
    """As when a machine's processes are killed while they start; Paddle itself would wait for ever."""
    code = "from paddle_stable.distributed import World; World.from_environment(timeout=3.0)"
    place = {
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ID": "0",
        "PADDLE_MASTER": f"127.0.0.1:{_free_port()}",
        "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:1,127.0.0.1:2",
        "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **place}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "waiting for all 2 processes of this run" in done.stderr
    assert "in init_parallel_env" in done.stderr


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[str]:
    """Address of an etcd on the loopback interface."""
    if shutil.which("etcd") is None or importlib.util.find_spec("etcd3") is None:
        pytest.skip("needs Debian's etcd-server and the Python package etcd3 (docs/launch.md)")
    urls = [f"http://127.0.0.1:{_free_port()}" for _ in range(2)]
    command = ["etcd", "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", urls[0]]
    command += ["--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1]]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield urls[0].replace("http://", "etcd://")
    server.terminate()
    server.wait()


def test_paddles_own_way_with_an_etcd_brings_a_killed_process_back(etcd: str, tmp_path: Path) -> None:
    (tmp_path / "unlucky.py").write_text(MISHAPS, encoding="utf8")
    (tmp_path / "hung").touch()  # only the kill
    train = Train(tmp_path)
    values = {**STEPS, "task__target": "unlucky.Unlucky"}
    command = train.command("--trust", "--resume", "auto", ranks=2, **values)
    place = command.index("--nproc_per_node")
    options = ["--master", etcd, "--job_id", "unlucky", "--max_restart", "3", "--elastic_level", "1"]
    command[place:place] = options
    environment = {**train.environment, "UNLUCKY": "1", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    broken = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert broken.returncode == 0, broken.stdout
    assert (tmp_path / "killed").exists()
    assert "resume: going on from" in (tmp_path / "run" / "run.log").read_text(encoding="utf8")
    whole = train("--trust", ranks=2, run__output_dir=str(tmp_path / "whole"), **values)
    assert whole.returncode == 0
    assert final_digest(tmp_path / "run") == final_digest(tmp_path / "whole")
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


RANK = """
import os, signal, sys, time
signals = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: signals.append(time.time()))
what = sys.argv[1 + int(os.environ["PADDLE_TRAINER_ID"])]
if what == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
open(f"{sys.argv[0]}.{what}", "w").close()
if what.startswith("survive"):
    while not signals:
        time.sleep(0.05)
    time.sleep(1.0)
    print("got", len(signals), "signals", flush=True)
    code = what.removeprefix("survive")
    time.sleep(0.0 if code else 60.0)
    sys.exit(int(code))
sys.exit(int(what))
"""

TABLE = [
    # what the ranks do, and the launcher's code
    (("75", "75"), 75),
    (("survive75", "kill"), 75),  # the first code in the order of ranks that is not 0: rank 0 was told to stop
    (("survive0", "kill"), 247),  # 256 - 9
    (("survive", "kill"), 247),  # a survivor that does not leave is killed after three seconds
]


def test_the_launchers_exit_codes_are_those_of_the_table_in_the_documentation(tmp_path: Path) -> None:
    """All rows at once: the launcher sleeps most of the time. `--max_restart` brings nothing back in any of them."""
    launchers = []
    for number, (ranks, _) in enumerate(TABLE):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = folder / "rank.py"
        script.write_text(RANK, encoding="utf8")
        command = [*PADDLE_LAUNCHER, "--nproc_per_node", "2", "--log_dir", "log", "--max_restart", "3", str(script)]
        launchers.append(
            subprocess.Popen([*command, *ranks], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
    assert [launcher.wait(timeout=300) for launcher in launchers] == [code for _, code in TABLE]
    for number in (1, 2):  # once, although a second start would have continued the log
        assert (tmp_path / str(number) / "log" / "workerlog.0").read_text() == "got 3 signals\n"
