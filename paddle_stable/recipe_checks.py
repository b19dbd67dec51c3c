"""Checks of a recipe that need more than one key, the machine, or experience with gradient clipping."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Literal, final

from paddle_stable.recipe import AdaptiveClipConfig, ClipConfig, ModelKind, Recipe

CLIP_KEYS: Mapping[str, tuple[str, ...]] = {
    "global_norm": ("max_norm", "schedule"),
    "norm": ("max_norm",),
    "value": ("max_value",),
    "adaptive": ("max_norm", "adaptive"),
    "layers": ("max_norm", "groups"),
    "none": (),
}
"""The keys of the section `clip` that each kind of clip looks at."""

ADAPTIVE_KEYS: Mapping[str, tuple[str, ...]] = {
    "percentile": ("warmup_steps", "percentile", "window"),
    "zscore": ("warmup_steps", "z_threshold", "decay", "rebaseline_after"),
}
"""The keys of the section `clip.adaptive` that each method looks at."""

CLIP_RANGES: Mapping[ModelKind, tuple[float, float, str]] = {
    "cnn": (5.0, 10.0, "convolutional networks"),
    "rnn": (1.0, 5.0, "recurrent networks"),
    "transformer": (0.5, 2.0, "transformers"),
    "detection": (5.0, 10.0, "text detectors"),
}
"""Bounds on the global gradient norm with which models of a kind usually train well."""

CAPABILITY = {"float16": (7, 0), "bfloat16": (8, 0)}
"""Least compute capability of a GPU on which a type pays: Volta and Ampere brought the Tensor Cores for them."""

_SHORT = {"float16": "fp16", "bfloat16": "bf16"}


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Keys that do not go together."""

    key: str
    """Dotted; the finding is reported at its line."""
    message: str
    """Without the key."""
    others: tuple[str, ...] = ()
    """Further keys that it depends on: where one of them is wrong in itself, the finding means nothing."""


def unused_clip_keys(kind: str) -> tuple[str, ...]:
    """Keys of the section `clip` that this kind of clip does not look at; () for a kind that does not exist."""
    if kind not in CLIP_KEYS:
        return ()
    return tuple(key for key in ClipConfig.model_fields if key != "kind" and key not in CLIP_KEYS[kind])


def unused_adaptive_keys(method: str) -> tuple[str, ...]:
    """Keys of the section `clip.adaptive` that this method does not look at."""
    return tuple(key for key in AdaptiveClipConfig.model_fields if key not in ("method", *ADAPTIVE_KEYS[method]))


def check_keys(recipe: Recipe, given: Collection[str]) -> list[Finding]:
    """Everything that can be seen without the task and the machine.

    Args:
        recipe: a recipe whose keys are valid one by one.
        given: dotted keys that were written down; the others have their defaults.
    """
    checks = (_length, _warmup, _clip, _clip_kinds, _spike, _amp)
    return [*(finding for check in checks for finding in check(recipe, given)), *_faults(recipe)]


def check_metric(recipe: Recipe, metric_names: Collection[str]) -> list[Finding]:
    """Whether the task reports the metric that chooses the best checkpoint."""
    if recipe.run.best_metric in metric_names:
        return []
    near = get_close_matches(recipe.run.best_metric, metric_names, n=1)
    hint = f". Did you mean {near[0]}?" if near else ""
    message = f"must be a metric of this task ({', '.join(metric_names)}), got {recipe.run.best_metric!r}{hint}"
    return [Finding("run.best_metric", message)]


def _length(recipe: Recipe, given: Collection[str]) -> Iterator[Finding]:
    epochs, steps = recipe.run.epochs, recipe.run.steps
    if epochs is None and steps is None:
        yield Finding("run", "needs `epochs` or `steps`: how long to train", ("run.epochs", "run.steps"))
    elif epochs is not None and steps is not None:
        message = "run.epochs is given too, and only one can count. To drop it: -o run.epochs=null"
        yield Finding("run.steps", message, ("run.epochs",))


def _warmup(recipe: Recipe, given: Collection[str]) -> Iterator[Finding]:
    schedule, steps = recipe.schedule, recipe.run.steps
    if schedule.warmup_steps is not None and schedule.warmup_ratio is not None:
        message = (
            "schedule.warmup_steps is given too, and only one can count. To drop it: -o schedule.warmup_steps=null"
        )
        yield Finding("schedule.warmup_ratio", message, ("schedule.warmup_steps",))
    if schedule.warmup_steps is not None and steps is not None and schedule.warmup_steps > steps:
        message = f"{schedule.warmup_steps} is more than run.steps ({steps})"
        yield Finding("schedule.warmup_steps", message, ("run.steps",))


def _clip(recipe: Recipe, given: Collection[str]) -> Iterator[Finding]:
    kind = recipe.clip.kind
    for key in unused_clip_keys(kind):
        if f"clip.{key}" in given:
            used = f"which uses {' and '.join(CLIP_KEYS[kind])}" if CLIP_KEYS[kind] else "which only observes"
            yield Finding(
                f"clip.{key}", f"is not used by clip.kind {kind}, {used}. Remove one of the two", ("clip.kind",)
            )


def _clip_kinds(recipe: Recipe, given: Collection[str]) -> Iterator[Finding]:
    """What the kinds of clip with more than a bound need."""
    clip = recipe.clip
    if clip.kind == "adaptive":
        if "clip.max_norm" not in given:
            message = "missing: clip.kind adaptive needs a bound that it never exceeds, some times the usual norm"
            yield Finding("clip.max_norm", message, ("clip.kind",))
        method = clip.adaptive.method
        for key in unused_adaptive_keys(method):
            if f"clip.adaptive.{key}" in given:
                message = f"is not used by clip.adaptive.method {method}. Remove one of the two"
                yield Finding(f"clip.adaptive.{key}", message, ("clip.adaptive.method", "clip.kind"))
        if method == "percentile" and clip.adaptive.warmup_steps > clip.adaptive.window:
            message = f"{clip.adaptive.warmup_steps} is more than clip.adaptive.window ({clip.adaptive.window})"
            yield Finding("clip.adaptive.warmup_steps", message, ("clip.adaptive.window", "clip.kind"))
    if clip.kind == "layers":
        if not clip.groups:
            message = "missing: clip.kind layers needs at least one group with `match` and `max_norm`"
            yield Finding("clip.groups", message, ("clip.kind",))
        patterns = [group.match for group in clip.groups]
        for number, pattern in enumerate(patterns):
            if pattern in patterns[:number]:
                yield Finding(f"clip.groups.{number}.match", f"{pattern!r} is there twice", ("clip.groups",))
    for number, (earlier, later) in enumerate(pairwise(clip.schedule), start=1):
        if later.from_step <= earlier.from_step:
            message = f"must be more than the one before ({earlier.from_step}), got {later.from_step}"
            yield Finding(f"clip.schedule.{number}.from_step", message, ("clip.schedule",))


def _spike(recipe: Recipe, given: Collection[str]) -> Iterator[Finding]:
    stability = recipe.stability
    if stability.spike.action == "rollback" and stability.recovery.max_rollbacks == 0:
        message = "rollback needs stability.recovery.max_rollbacks of at least 1, got 0. Raise it, or use skip"
        yield Finding("stability.spike.action", message, ("stability.recovery.max_rollbacks",))
    action = stability.spike.action  # rollback skips as well, once no rollback is left
    if action in ("skip", "rollback") and stability.spike.rebaseline_after > stability.max_consecutive_skips:
        message = (
            f"{stability.spike.rebaseline_after} is more than stability.max_consecutive_skips "
            f"({stability.max_consecutive_skips}): with action {action} the run would stop before it takes the new "
            "level"
        )
        others = ("stability.max_consecutive_skips", "stability.spike.action")
        yield Finding("stability.spike.rebaseline_after", message, others)


def _amp(recipe: Recipe, given: Collection[str]) -> Iterator[Finding]:
    amp = recipe.amp
    if amp.emulate and amp.dtype == "float32":
        message = "emulates half precision, but amp.dtype is float32. Set it to float16 or bfloat16"
        yield Finding("amp.emulate", message, ("amp.dtype",))
    if amp.emulate and amp.level == "O2":
        message = "rounds what layers put out, as O1 does, and keeps parameters in float32. Set amp.level to O1"
        yield Finding("amp.emulate", message, ("amp.level",))
    if amp.min_scale > amp.max_scale:
        message = f"{amp.min_scale:.12g} is more than amp.max_scale ({amp.max_scale:.12g})"
        yield Finding("amp.min_scale", message, ("amp.max_scale",))
    elif not amp.min_scale <= amp.init_scale <= amp.max_scale:
        message = f"must lie between amp.min_scale and amp.max_scale ({amp.min_scale:.12g} … {amp.max_scale:.12g})"
        yield Finding("amp.init_scale", f"{message}, got {amp.init_scale:.12g}", ("amp.min_scale", "amp.max_scale"))


def _faults(recipe: Recipe) -> Iterator[Finding]:
    for number, fault in enumerate(recipe.faults):
        for earlier_number, earlier in enumerate(recipe.faults[:number]):
            if fault.step != earlier.step:
                continue
            if fault == earlier or fault.kind == earlier.kind == "withhold":
                yield Finding(
                    f"faults.{number}", f"is the same as faults.{earlier_number}", (f"faults.{earlier_number}",)
                )
            elif "withhold" in (fault.kind, earlier.kind):
                hidden = earlier if fault.kind == "withhold" else fault
                message = f"step {fault.step} is withheld, so that {hidden.kind} cannot happen in it"
                yield Finding(f"faults.{number}", message, (f"faults.{earlier_number}",))


@final
@dataclass(frozen=True, slots=True)
class Device:
    """The device that a recipe will run on."""

    kind: Literal["cpu", "gpu", "xpu", "npu"]
    capability: tuple[int, int] = (0, 0)
    """Compute capability of a GPU."""


def check_device(recipe: Recipe) -> list[tuple[str, str]]:
    """Whether this machine can do what `run.device` and `amp` ask: (key, message) for what it cannot.

    Imports Paddle and asks it for its devices.
    """
    import paddle

    available = {
        "cpu": True,
        "gpu": paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0,
        "xpu": paddle.is_compiled_with_xpu(),
        "npu": paddle.is_compiled_with_custom_device("npu"),
    }
    wanted = recipe.run.device
    if wanted == "auto":
        wanted = "gpu" if available["gpu"] else "cpu"
    if not available[wanted]:
        built = paddle.is_compiled_with_cuda() if wanted == "gpu" else False
        why = "Paddle finds none" if built else "this Paddle is built without it"
        return [("run.device", f"{wanted} is asked for, but {why}. Use auto or cpu")]
    capability = paddle.device.cuda.get_device_capability() if wanted == "gpu" else (0, 0)
    return check_precision(recipe, Device(wanted, (int(capability[0]), int(capability[1]))))


def check_precision(recipe: Recipe, device: Device) -> list[tuple[str, str]]:
    """Whether half precision helps on a device: (key, message) when it does not."""
    dtype = recipe.amp.dtype
    if dtype == "float32" or recipe.amp.emulate or device.kind in ("xpu", "npu"):
        return []
    least = CAPABILITY[dtype]
    if device.kind == "gpu" and device.capability >= least:
        return []
    if device.kind == "gpu":
        found = "this one has {}.{}".format(*device.capability)
    elif recipe.run.device == "cpu":
        found = "run.device is cpu"
    else:
        found = "this machine has neither"
    message = f"{dtype} needs a GPU (compute capability {least[0]}.{least[1]} or higher) or an NPU; {found}. "
    return [("amp.dtype", message + f"Use float32, or amp.emulate: true to rehearse {_SHORT[dtype]} on the CPU.")]


def advise(recipe: Recipe, model_kind: ModelKind) -> tuple[str, ...]:
    """What is allowed and probably not meant, each in a sentence."""
    return (*_advise_on_clip(recipe, model_kind), *_advise_on_faults(recipe))


def _advise_on_clip(recipe: Recipe, model_kind: ModelKind) -> Iterator[str]:
    low, high, models = CLIP_RANGES[model_kind]
    clip = recipe.clip
    if clip.kind == "global_norm" and not low <= clip.max_norm <= high:
        yield f"clip.max_norm {clip.max_norm} is outside {low:g}–{high:g}, where {models} usually train well."
    if clip.kind == "none":
        yield (
            f"clip.kind none observes and limits nothing{_but_spikes(recipe)}: let tools/find_clip.py take the 95th "
            "percentile of the norms as clip.max_norm, and set clip.kind to global_norm "
            f"({models}: {low:g}–{high:g})."
        )
    for number, bound in enumerate(clip.schedule):
        if recipe.run.steps is not None and bound.from_step >= recipe.run.steps:
            yield (
                f"clip.schedule.{number}: {bound.from_step} applied steps are never reached, run.steps is "
                f"{recipe.run.steps}."
            )


def _but_spikes(recipe: Recipe) -> str:
    return " but spikes (stability.spike)" if recipe.stability.spike.action == "clip" else ""


def _advise_on_faults(recipe: Recipe) -> Iterator[str]:
    if recipe.faults:
        kinds = ", ".join(f"{fault.kind} at step {fault.step}" for fault in recipe.faults)
        yield f"faults: this run will be disturbed on purpose ({kinds})."
    for number, fault in enumerate(recipe.faults):
        if recipe.run.steps is not None and fault.step > recipe.run.steps:
            yield f"faults.{number}: step {fault.step} is never reached, run.steps is {recipe.run.steps}."
