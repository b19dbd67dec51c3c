"""Two processes explain an incident without a word to each other, and train on as if they had not."""

from __future__ import annotations

from pathlib import Path

from .conftest import Train, final_digest


def test_two_processes_explain_and_go_on_as_without_explanations(train: Train, tmp_path: Path) -> None:
    """A missing price, kept: some windows hold it, on one rank, on the other, or on both."""
    data = tmp_path / "data" / "series.csv"
    lines = data.read_text(encoding="utf8").splitlines()
    lines[99] = ",".join([lines[99].split(",")[0], "", lines[99].split(",")[2]])
    data.write_text("\n".join(lines) + "\n", encoding="utf8")
    ends = {}
    for enabled in (True, False):
        run = tmp_path / str(enabled)
        done = train(
            ranks=2, run__output_dir=str(run), run__steps=12, run__eval_every=12, task__dropout=0.2,
            data__policy={"missing": "keep", "jump": "keep"}, data__batch_size=8,
            forensics__enabled=enabled, forensics__max_reports=12,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        ends[enabled] = final_digest(run)
    assert ends[True] == ends[False]
    assert not (tmp_path / "False" / "incidents").exists()
    folders = sorted((tmp_path / "True" / "incidents").iterdir())
    blamed = [folder for folder in folders if "bad input" in (folder / "report.md").read_text(encoding="utf8")]
    innocent = [folder for folder in folders if folder not in blamed]
    assert {"rank" in folder.name for folder in blamed} == {True, False}
    assert innocent
    for folder in innocent:  # rank 0, which saw nothing, says where to look
        text = (folder / "report.md").read_text(encoding="utf8")
        assert "not reproducible" in text
        assert "about the samples of rank 0 only" in text
        assert folder.with_name(f"{folder.name}-rank-1").is_dir()
