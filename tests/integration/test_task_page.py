"""The example of docs/task.md is what it says it is: a task that trains."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from .conftest import ROOT, Train


def test_the_task_of_the_page_trains(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "task.md").read_text(encoding="utf8")
    [task] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [recipe] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "points.py").write_text(task, encoding="utf8")
    (tmp_path / "points.yaml").write_text(recipe, encoding="utf8")
    code = "from pathlib import Path; from points import PointsTask; PointsTask.write_sample_data(Path('.'))"
    environment = {**Train.environment, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    command = [sys.executable, str(ROOT / "tools" / "train.py"), "-c", "points.yaml", "--trust"]
    done = subprocess.run(command, cwd=tmp_path, env=Train.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "runs" / "points" / "results.json").read_text(encoding="utf8"))
    assert results["metrics"]["accuracy"] > 0.8
