"""Keys that do not go together, half precision that a machine cannot do, and advice."""

from __future__ import annotations

from typing import Any, get_args

import paddle
import pytest
from pydantic import ValidationError

from paddle_stable.recipe import AdaptiveClipConfig, ClipConfig, ModelKind, Recipe
from paddle_stable.recipe_checks import (
    ADAPTIVE_KEYS,
    CLIP_KEYS,
    Device,
    Finding,
    advise,
    check_device,
    check_keys,
    check_metric,
    check_precision,
    unused_adaptive_keys,
    unused_clip_keys,
)


def recipe(**sections: Any) -> Recipe:
    run = {"output_dir": "x", "steps": 100, **sections.pop("run", {})}
    return Recipe.model_validate({"run": run, "task": {"target": "a.B"}, "data": {}, **sections})


def given(sections: dict[str, Any]) -> set[str]:
    return {f"{name}.{key}" for name, keys in sections.items() if isinstance(keys, dict) for key in keys}


def found(**sections: Any) -> list[tuple[str, str]]:
    return [(finding.key, finding.message) for finding in check_keys(recipe(**sections), given(sections))]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"run": {"steps": None, "epochs": 2}},
        {"schedule": {"warmup_steps": 100}},
        {"schedule": {"warmup_ratio": 0.5}},
        {"run": {"steps": None, "epochs": 1}, "schedule": {"warmup_steps": 10**6}},
        {"amp": {"dtype": "float16", "emulate": True}},
        {"amp": {"min_scale": 8.0, "init_scale": 8.0, "max_scale": 8.0}},
        {"clip": {"kind": "global_norm", "max_norm": 3.0}},
        {"clip": {"kind": "norm", "max_norm": 3.0}},
        {"clip": {"kind": "value", "max_value": 3.0}},
        {"clip": {"kind": "none"}},
        {"clip": {"kind": "global_norm", "schedule": [{"from_step": n, "max_norm": None} for n in (0, 1, 9)]}},
        {"clip": {"kind": "adaptive", "max_norm": 9.0}},
        {"clip": {"kind": "adaptive", "max_norm": 9.0, "adaptive": {"method": "zscore", "z_threshold": 3.0}}},
        {"clip": {"kind": "layers", "groups": [{"match": name, "max_norm": 1.0} for name in "ab"]}},
        {"stability": {"spike": {"action": "skip"}}},
        {"stability": {"spike": {"action": "clip", "rebaseline_after": 50}}},
        {"faults": [{"step": 1, "kind": "nan_loss"}, {"step": 2, "kind": "nan_loss"}]},
        {"faults": [{"step": 1, "kind": "nan_loss"}, {"step": 1, "kind": "nan_loss", "rank": 1}]},
        {"faults": [{"step": 1, "kind": "inf_grad", "parameter": p} for p in ("a", "b")]},
        {"faults": [{"step": 1, "kind": "withhold"}, {"step": 2, "kind": "withhold"}]},
    ],
)
def test_keys_that_go_together_pass(sections: dict[str, Any]) -> None:
    assert found(**sections) == []


GIVEN_TOO = " is given too, and only one can count. To drop it: -o "
BETWEEN = "must lie between amp.min_scale and amp.max_scale"
REMOVE = ". Remove one of the two"


@pytest.mark.parametrize(
    ("sections", "findings"),
    [
        ({"run": {"steps": None}}, [("run", "needs `epochs` or `steps`: how long to train")]),
        ({"run": {"epochs": 3}}, [("run.steps", f"run.epochs{GIVEN_TOO}run.epochs=null")]),
        (
            {"schedule": {"warmup_steps": 5, "warmup_ratio": 0.1}},
            [("schedule.warmup_ratio", f"schedule.warmup_steps{GIVEN_TOO}schedule.warmup_steps=null")],
        ),
        ({"schedule": {"warmup_steps": 101}}, [("schedule.warmup_steps", "101 is more than run.steps (100)")]),
        (
            {"amp": {"emulate": True}},
            [("amp.emulate", "emulates half precision, but amp.dtype is float32. Set it to float16 or bfloat16")],
        ),
        (
            {"amp": {"dtype": "float16", "emulate": True, "level": "O2"}},
            [
                (
                    "amp.emulate",
                    "rounds what layers put out, as O1 does, and keeps parameters in float32. Set amp.level to O1",
                )
            ],
        ),
        ({"amp": {"min_scale": 9.0, "max_scale": 8.0}}, [("amp.min_scale", "9 is more than amp.max_scale (8)")]),
        ({"amp": {"init_scale": 0.5}}, [("amp.init_scale", f"{BETWEEN} (1 … 16777216), got 0.5")]),
        ({"amp": {"init_scale": 9.0, "max_scale": 8.0}}, [("amp.init_scale", f"{BETWEEN} (1 … 8), got 9")]),
        (
            {"clip": {"max_value": 1.0}},
            [("clip.max_value", f"is not used by clip.kind global_norm, which uses max_norm and schedule{REMOVE}")],
        ),
        (
            {"clip": {"kind": "norm", "max_value": 1.0}},
            [("clip.max_value", f"is not used by clip.kind norm, which uses max_norm{REMOVE}")],
        ),
        (
            {"clip": {"kind": "value", "max_norm": 1.0}},
            [("clip.max_norm", f"is not used by clip.kind value, which uses max_value{REMOVE}")],
        ),
        (
            {"clip": {"kind": "none", "max_norm": 1.0, "max_value": 1.0}},
            [
                (f"clip.{key}", f"is not used by clip.kind none, which only observes{REMOVE}")
                for key in ("max_norm", "max_value")
            ],
        ),
        (
            {"clip": {"schedule": [{"from_step": n, "max_norm": 1.0} for n in (5, 5, 4)]}},
            [
                ("clip.schedule.1.from_step", "must be more than the one before (5), got 5"),
                ("clip.schedule.2.from_step", "must be more than the one before (5), got 4"),
            ],
        ),
        (
            {"clip": {"kind": "adaptive"}},
            [
                (
                    "clip.max_norm",
                    "missing: clip.kind adaptive needs a bound that it never exceeds, some times the usual norm",
                )
            ],
        ),
        (
            {"clip": {"kind": "adaptive", "max_norm": 9.0, "adaptive": {"window": 10}}},
            [("clip.adaptive.warmup_steps", "25 is more than clip.adaptive.window (10)")],
        ),
        (
            {"clip": {"kind": "norm", "groups": []}},
            [("clip.groups", f"is not used by clip.kind norm, which uses max_norm{REMOVE}")],
        ),
        (
            {"clip": {"kind": "layers"}},
            [("clip.groups", "missing: clip.kind layers needs at least one group with `match` and `max_norm`")],
        ),
        (
            {"clip": {"kind": "layers", "groups": [{"match": "a", "max_norm": 1.0}] * 2}},
            [("clip.groups.1.match", "'a' is there twice")],
        ),
        (
            {"stability": {"max_consecutive_skips": 10, "spike": {"action": "skip"}}},
            [
                (
                    "stability.spike.rebaseline_after",
                    "20 is more than stability.max_consecutive_skips (10): with action skip the run would stop before "
                    "it takes the new level",
                )
            ],
        ),
        (
            {"stability": {"max_consecutive_skips": 10, "spike": {"action": "rollback"}}},
            [
                (
                    "stability.spike.rebaseline_after",
                    "20 is more than stability.max_consecutive_skips (10): with action rollback the run would stop "
                    "before it takes the new level",
                )
            ],
        ),
        ({"faults": [{"step": 1, "kind": "nan_loss"}] * 2}, [("faults.1", "is the same as faults.0")]),
        (
            {"faults": [{"step": 1, "kind": "withhold"}, {"step": 1, "kind": "withhold", "rank": 1}]},
            [("faults.1", "is the same as faults.0")],
        ),
        (
            {"faults": [{"step": 1, "kind": "nan_loss"}, {"step": 1, "kind": "withhold"}]},
            [("faults.1", "step 1 is withheld, so that nan_loss cannot happen in it")],
        ),
        (
            {
                "faults": [
                    {"step": 1, "kind": "withhold"},
                    {"step": 2, "kind": "nan_loss"},
                    {"step": 1, "kind": "inf_grad", "rank": 3},
                ]
            },
            [("faults.2", "step 1 is withheld, so that inf_grad cannot happen in it")],
        ),
    ],
)
def test_keys_that_do_not_go_together_are_found(sections: dict[str, Any], findings: list[tuple[str, str]]) -> None:
    assert found(**sections) == findings


@pytest.mark.parametrize(("method", "key"), [("percentile", "decay"), ("zscore", "percentile"), ("zscore", "window")])
def test_a_key_of_the_other_method_is_found(method: str, key: str) -> None:
    clip = {"kind": "adaptive", "max_norm": 9.0, "adaptive": {"method": method}}
    findings = check_keys(recipe(clip=clip), {"clip.max_norm", f"clip.adaptive.{key}"})
    message = f"is not used by clip.adaptive.method {method}. Remove one of the two"
    assert [(finding.key, finding.message) for finding in findings] == [(f"clip.adaptive.{key}", message)]


def test_every_adaptive_method_says_which_keys_it_uses() -> None:
    assert set(ADAPTIVE_KEYS) == set(get_args(AdaptiveClipConfig.model_fields["method"].annotation))
    for method, used in ADAPTIVE_KEYS.items():
        assert {"method", *used, *unused_adaptive_keys(method)} == set(AdaptiveClipConfig.model_fields)


def test_a_spike_warm_up_longer_than_its_window_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"warmup_steps: must be at most window \(20\), got 30"):
        recipe(stability={"spike": {"window": 20}})


def test_a_bound_that_is_never_reached_is_named() -> None:
    clip = {"max_norm": 1.0, "schedule": [{"from_step": n, "max_norm": 1.0} for n in (99, 100)]}
    assert advise(recipe(clip=clip), "transformer") == (
        "clip.schedule.1: 100 applied steps are never reached, run.steps is 100.",
    )


def test_several_findings_come_together() -> None:
    sections = {"run": {"epochs": 1}, "clip": {"max_value": 1.0}, "amp": {"emulate": True}}
    assert [key for key, _ in found(**sections)] == ["run.steps", "clip.max_value", "amp.emulate"]


def test_every_kind_of_clip_says_which_keys_it_uses() -> None:
    assert set(CLIP_KEYS) == set(get_args(ClipConfig.model_fields["kind"].annotation))
    for kind, used in CLIP_KEYS.items():
        assert {"kind", *used, *unused_clip_keys(kind)} == set(ClipConfig.model_fields)
        assert not set(used) & set(unused_clip_keys(kind))
    assert unused_clip_keys("no_such_kind") == ()


def test_the_best_metric_is_one_that_the_task_reports() -> None:
    names = {"accuracy": True, "loss": False}
    assert check_metric(recipe(run={"best_metric": "accuracy"}), names) == []
    assert check_metric(recipe(run={"best_metric": "acuracy"}), names) == [
        Finding(
            "run.best_metric",
            "must be a metric of this task (accuracy, loss), got 'acuracy'. Did you mean accuracy?",
        )
    ]


CPU = Device("cpu")
PASCAL, VOLTA, AMPERE = (Device("gpu", capability) for capability in ((6, 1), (7, 0), (8, 0)))


@pytest.mark.parametrize(
    ("dtype", "device", "allowed"),
    [
        ("float32", CPU, True), ("float32", PASCAL, True),
        ("float16", CPU, False), ("float16", PASCAL, False), ("float16", VOLTA, True), ("float16", AMPERE, True),
        ("bfloat16", CPU, False), ("bfloat16", VOLTA, False), ("bfloat16", AMPERE, True),
        ("bfloat16", Device("gpu", (9, 0)), True),
        ("bfloat16", Device("gpu", (12, 0)), True),
        ("float16", Device("npu"), True), ("bfloat16", Device("xpu"), True),
    ],
)  # fmt: skip
def test_half_precision_is_allowed_where_it_helps(dtype: str, device: Device, allowed: bool) -> None:
    assert (check_precision(recipe(amp={"dtype": dtype}), device) == []) is allowed


@pytest.mark.parametrize("device", [CPU, PASCAL, AMPERE])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_emulation_is_allowed_everywhere(dtype: str, device: Device) -> None:
    assert check_precision(recipe(amp={"dtype": dtype, "emulate": True}), device) == []


@pytest.mark.parametrize(
    ("dtype", "asked", "device", "message"),
    [
        (
            "float16", "auto", CPU,
            "float16 needs a GPU (compute capability 7.0 or higher) or an NPU; this machine has neither. "
            "Use float32, or amp.emulate: true to rehearse fp16 on the CPU.",
        ),
        (
            "bfloat16", "cpu", CPU,
            "bfloat16 needs a GPU (compute capability 8.0 or higher) or an NPU; run.device is cpu. "
            "Use float32, or amp.emulate: true to rehearse bf16 on the CPU.",
        ),
        (
            "bfloat16", "auto", VOLTA,
            "bfloat16 needs a GPU (compute capability 8.0 or higher) or an NPU; this one has 7.0. "
            "Use float32, or amp.emulate: true to rehearse bf16 on the CPU.",
        ),
    ],
)  # fmt: skip
def test_half_precision_that_cannot_be_says_what_is_needed(
    dtype: str, asked: str, device: Device, message: str
) -> None:
    assert check_precision(recipe(run={"device": asked}, amp={"dtype": dtype}), device) == [("amp.dtype", message)]


@pytest.mark.skipif(paddle.is_compiled_with_cuda(), reason="this Paddle can use a GPU")
@pytest.mark.parametrize("device", ["gpu", "xpu", "npu"])
def test_a_device_that_this_paddle_does_not_know_is_refused(device: str) -> None:
    message = f"{device} is asked for, but this Paddle is built without it. Use auto or cpu"
    assert check_device(recipe(run={"device": device})) == [("run.device", message)]


def test_the_cpu_is_always_there() -> None:
    assert check_device(recipe(run={"device": "cpu"})) == []
    ((key, message),) = check_device(recipe(run={"device": "cpu"}, amp={"dtype": "float16"}))
    assert key == "amp.dtype"
    assert "run.device is cpu" in message


@pytest.mark.parametrize(
    ("kind", "low", "high", "models"),
    [
        ("cnn", 5.0, 10.0, "convolutional networks"),
        ("rnn", 1.0, 5.0, "recurrent networks"),
        ("transformer", 0.5, 2.0, "transformers"),
        ("detection", 5.0, 10.0, "text detectors"),
    ],
)
def test_a_bound_outside_the_range_of_its_models_is_advised_against(
    kind: ModelKind, low: float, high: float, models: str
) -> None:
    def advice(max_norm: float) -> tuple[str, ...]:
        return advise(recipe(clip={"max_norm": max_norm}), kind)

    assert advice(low) == advice(high) == advice((low + high) / 2) == ()
    for outside in (low * 0.9, high * 1.1):
        assert advice(outside) == (
            f"clip.max_norm {outside} is outside {low:g}–{high:g}, where {models} usually train well.",
        )


def test_the_ranges_are_for_the_global_norm_only() -> None:
    assert advise(recipe(clip={"kind": "norm", "max_norm": 100.0}), "rnn") == ()
    assert advise(recipe(clip={"kind": "value", "max_value": 100.0}), "rnn") == ()


def test_observing_is_followed_by_the_way_to_a_bound() -> None:
    (sentence,) = advise(recipe(clip={"kind": "none"}), "rnn")
    assert "95th percentile" in sentence
    assert "recurrent networks: 1–5" in sentence


def test_faults_are_announced_and_those_that_never_happen_named() -> None:
    faults = [{"step": step, "kind": "nan_loss"} for step in (100, 101)]
    assert advise(recipe(faults=faults), "transformer") == (
        "faults: this run will be disturbed on purpose (nan_loss at step 100, nan_loss at step 101).",
        "faults.1: step 101 is never reached, run.steps is 100.",
    )
