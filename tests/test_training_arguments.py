from __future__ import annotations

import pytest

from paddle_stable.training_arguments import training_parser


def test_overrides_are_collected_in_order_and_the_last_resume_counts() -> None:
    arguments = ["-c", "r.yaml", "-o", "a=1", "-o", "a=b=2", "--resume", "runs/x", "--resume", "auto"]
    parsed = training_parser(None).parse_args(arguments)
    assert (parsed.config, parsed.override, parsed.resume) == ("r.yaml", ["a=1", "a=b=2"], "auto")
    assert (parsed.check, parsed.smoke, parsed.trust) == (False, False, False)


def test_a_recipe_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        training_parser(None).parse_args([])
    assert "--config" in capsys.readouterr().err
