"""What a recipe is: frozen models of every YAML section.

Reading a file into a `Recipe` (line numbers, overrides, "did you mean") is in `recipe_io.py`, what needs more than one
key in `recipe_checks.py`.
The documentation under a field reaches editors through the generated JSON Schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

ModelKind = Literal["cnn", "rnn", "transformer", "detection"]
MomentDecay = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """A part of a recipe: unknown keys are errors, values never change after loading.

    A validator of several keys raises `ValueError("key: what is expected, what was found")`; a message that begins with
    a key of the section is reported at that key's line.
    """

    # Defaults are validated by a test: at loading, when values come as JSON, a default such as a Path would be refused.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class RunConfig(Section):
    """How long to train, where results go, how often to look and save."""

    output_dir: str = Field(min_length=1)
    """Run folder: checkpoints, metrics.jsonl, VisualDL records, exit.json."""
    epochs: PositiveInt | None = None
    """Passes over the training data. Give `epochs` or `steps`, not both."""
    steps: PositiveInt | None = None
    """Optimizer steps to attempt. Give `epochs` or `steps`, not both."""
    seed: NonNegativeInt = 1
    """Everything random is a function of it: initial weights, order, dropout, augmentation."""
    accumulate: PositiveInt = 1
    """Micro-batches whose gradients are added up before one optimizer step."""
    log_every: PositiveInt = 10
    """Steps between two records in VisualDL and metrics.jsonl."""
    eval_every: PositiveInt | None = None
    """Steps between two evaluations on the dev set; null: at the end of every epoch."""
    save_every: PositiveInt | None = None
    """Steps between two checkpoints; null: after every evaluation."""
    keep_last: PositiveInt = 2
    """Newest checkpoints kept; the best one is kept besides."""
    best_metric: str = "loss"
    """Dev metric that chooses the best checkpoint, one of those that the task reports."""
    early_stop: PositiveInt | None = None
    """Stop after that many evaluations in a row without a better `best_metric`; null: never."""
    device: Literal["auto", "cpu", "gpu", "xpu", "npu"] = "auto"
    """auto: a GPU when this Paddle has one, else the CPU."""
    deterministic: bool = False
    """Ask cuDNN and cuBLAS for repeatable kernels (slower). The CPU is repeatable at the same thread count."""
    hang_timeout: PositiveFloat | None = 900.0
    """Seconds without a sign of life (a step begun, a batch evaluated, a checkpoint saved) after which every process
    writes its stacks to `hang-rank-<rank>.txt` and leaves with exit code 4; null: never."""


class TaskConfig(Section):
    """What to train. Every task adds its own keys to `target`."""

    target: str
    """Dotted path of a Task class, such as `paddle_stable.tasks.ernie.ErnieClassification`."""


class DataConfig(Section):
    """What every task needs to know of its data. Every task adds its own keys (files, columns, splits)."""

    batch_size: PositiveInt = 32
    """Samples in one micro-batch of one process."""
    eval_batch_size: PositiveInt = 64
    """Samples in one evaluation batch: fixed, so that metrics do not depend on the number of processes."""
    workers: NonNegativeInt = 0
    """Processes that prepare batches ahead; 0: in the training process."""
    bad_samples: Literal["stop", "skip"] = "stop"
    """Unreadable training samples: stop before step 0, or leave them out and say so. Never applied to dev and test."""
    max_bad_samples: NonNegativeInt = 100
    """With `skip`: stop when more than this many are bad."""


class GroupConfig(Section):
    """Parameters treated differently, chosen by name."""

    match: str
    """Pattern in the style of a file name over parameter names: `embeddings.*`, `*.norm*.weight`."""
    lr_scale: NonNegativeFloat = 1.0
    """Factor on the learning rate of these parameters."""
    freeze: bool = False
    """Do not train these parameters at all."""


class OptimConfig(Section):
    """AdamW."""

    lr: PositiveFloat = 1e-3
    """Peak learning rate, reached after warm-up."""
    betas: tuple[MomentDecay, MomentDecay] = (0.9, 0.999)
    """Decay rates of the first and second moment, each in [0, 1)."""
    eps: PositiveFloat = 1e-8
    """Added to the denominator."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay; not applied to biases and normalisation layers."""
    groups: tuple[GroupConfig, ...] = ()
    """First match wins. All parameters stay in one flat list, so that the clip stays global."""


class ScheduleConfig(Section):
    """Learning rate as a function of the number of applied steps."""

    kind: Literal["linear", "cosine", "constant"] = "linear"
    """Shape of the decay after warm-up."""
    warmup_steps: NonNegativeInt | None = None
    """Applied steps of linear warm-up. Give this or `warmup_ratio`, not both."""
    warmup_ratio: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Warm-up as a part of all steps."""
    min_lr_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """The decay ends at this fraction of `optim.lr`."""


class AdaptiveClipConfig(Section):
    """A bound on the global norm that follows the norms of the run; never above `clip.max_norm`."""

    method: Literal["percentile", "zscore"] = "percentile"
    """percentile: AutoClip, of a window of past norms; zscore: ZClip, running mean and deviation of the norm."""
    warmup_steps: PositiveInt = 25
    """Applied steps that only teach it; `clip.max_norm` alone limits them."""
    percentile: float = Field(default=10.0, gt=0.0, le=100.0)
    """percentile: part of the past norms below the bound. 10 (AutoClip) limits about nine steps of ten."""
    window: int = Field(default=1000, ge=2)
    """percentile: newest norms that count."""
    z_threshold: PositiveFloat = 2.5
    """zscore: deviations above the mean at which a norm is limited."""
    decay: MomentDecay = 0.97
    """zscore: weight of the past in mean and variance, in [0, 1)."""
    rebaseline_after: int = Field(default=20, ge=2)
    """zscore: norms in a row beyond the threshold that become the new level, so that it cannot lock in below it."""


class ClipGroupConfig(Section):
    """Parameters with a bound of their own, chosen by name."""

    match: str
    """Pattern in the style of a file name over parameter names: `*.self_attn.*`."""
    max_norm: PositiveFloat
    """Bound on the L2 norm of all their gradients together."""


class ClipBoundConfig(Section):
    """The bound from some applied step on."""

    from_step: NonNegativeInt
    """Applied steps before it takes effect."""
    max_norm: PositiveFloat | None
    """Bound from there on; null: no limit."""


class ClipConfig(Section):
    """How gradients are limited. Exactly one kind; docs/clip.md says how to choose the bound."""

    kind: Literal["global_norm", "norm", "value", "adaptive", "layers", "none"] = "global_norm"
    """global_norm: one factor for all; norm: one per parameter; value: every element; adaptive: one factor for all, its
    bound follows the run; layers: one factor per group; none: observe only."""
    max_norm: PositiveFloat = 1.0
    """Bound on the L2 norm; of `adaptive` the highest one, of `layers` that of all parameters outside the groups. Start
    from the 95th percentile that tools/find_clip.py prints."""
    max_value: PositiveFloat = 1.0
    """Bound of `value` on the magnitude of every gradient element."""
    schedule: tuple[ClipBoundConfig, ...] = ()
    """Other bounds of `global_norm` later in the run; `max_norm` holds until the first of them."""
    adaptive: AdaptiveClipConfig = AdaptiveClipConfig()
    """How the bound of `adaptive` follows the norms."""
    groups: tuple[ClipGroupConfig, ...] = ()
    """Groups of `layers`. First match wins."""


class AmpConfig(Section):
    """Half precision. It pays on Tensor Cores or an NPU only."""

    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """float16 needs compute capability 7.0, bfloat16 8.0; float32 switches AMP off."""
    level: Literal["O1", "O2"] = "O1"
    """O1: chosen operations in half precision. O2: parameters too, with float32 master weights."""
    emulate: bool = False
    """Round activations and gradients through half precision on any device, to rehearse overflow without a GPU."""
    emulate_layers: tuple[str, ...] = ("*",)
    """Patterns over layer names that `emulate` rounds."""
    init_scale: PositiveFloat = 65536.0
    """First loss scale (float16 only)."""
    growth_interval: PositiveInt = 2000
    """Consecutive finite steps after which the scale doubles."""
    hysteresis: PositiveInt = 1
    """Truly consecutive overflows after which the scale halves."""
    min_scale: PositiveFloat = 1.0
    """The scale never goes below; overflow at this scale is a `nonfinite` skip."""
    max_scale: PositiveFloat = 16777216.0
    """The scale never goes above (2^24)."""


class SpikeConfig(Section):
    """Loss and gradient norm far beyond what the run usually shows."""

    action: Literal["clip", "skip", "rollback", "none"] = "clip"
    """clip: limit the norm of such a step to its usual level; skip: do not apply it; rollback: skip it and go back to
    the last good state, as long as `stability.recovery` has rollbacks left; none: do not look."""
    watch: tuple[Literal["loss", "norm"], ...] = Field(default=("loss", "norm"), min_length=1)
    """What may flag a step."""
    window: int = Field(default=384, ge=10)
    """Newest usual values that the usual level is taken from."""
    warmup_steps: int = Field(default=30, ge=5)
    """Values that are seen before the first can be flagged."""
    k: PositiveFloat = 4.0
    """Robust standard deviations (1.4826 x the median absolute deviation) of the logarithm above its median."""
    ratio: float = Field(default=3.0, gt=1.0)
    """A spike is also at least that many times the median, however quiet the run was."""
    rebaseline_after: int = Field(default=20, ge=2)
    """That many values beyond the limit, in a row or nearly, are no spikes but the new level."""

    @model_validator(mode="after")
    def _warmup_fits_the_window(self) -> SpikeConfig:
        if self.warmup_steps > self.window:
            raise ValueError(f"warmup_steps: must be at most window ({self.window}), got {self.warmup_steps}")
        return self


class RecoveryConfig(Section):
    """Going back to the last good state when the run diverges."""

    max_rollbacks: NonNegativeInt = 3
    """Rollbacks before the run ends with exit code 3; 0: none, and no snapshots are taken."""
    snapshot_every: PositiveInt = 50
    """Applied steps between two copies of the good state in host memory (three times the weights)."""
    healthy_steps: PositiveInt = 10
    """Only after that many steps in a row that were neither non-finite nor a spike is a state good."""
    loss_factor: float = Field(default=4.0, gt=1.0)
    """The run has diverged when the smoothed loss is above its own best by this factor …"""
    loss_steps: PositiveInt = 50
    """… for that many applied steps in a row."""
    lr_backoff: float = Field(default=0.5, gt=0.0, le=1.0)
    """Factor on the learning rate after every rollback."""
    rewarm_steps: NonNegativeInt = 20
    """Applied steps over which the learning rate is warmed up again after a rollback."""


class QuarantineConfig(Section):
    """Samples that are left out for good: those who spoilt steps of this run, or of an earlier one."""

    after: PositiveInt | None = None
    """Leave a sample out when it was blamed for that many non-finite steps, and name it in `quarantine.jsonl` in the
    run folder; null: never."""
    file: str | None = Field(default=None, min_length=1)
    """The `quarantine.jsonl` of an earlier run, whose samples are left out from the beginning."""


class StabilityConfig(Section):
    """What happens when a step is not usable."""

    guard: bool = True
    """false: apply every update whatever it holds. For experiments that show what the guard is for."""
    max_consecutive_skips: PositiveInt = 20
    """The run has diverged after that many skipped steps in a row (overflows above the floor not counted)."""
    window: PositiveInt = 100
    """Steps over which windowed rates and norm quantiles are taken."""
    bad_samples: Literal["skip", "drop"] = "skip"
    """When loss or gradient is not finite because of single samples. skip: the whole step is skipped; drop: it is done
    without them, the others weighted anew. To find them costs a few more passes over the batch."""
    quarantine: QuarantineConfig = QuarantineConfig()
    """Which samples are left out for good."""
    spike: SpikeConfig = SpikeConfig()
    """What to do about sudden jumps."""
    recovery: RecoveryConfig = RecoveryConfig()
    """What to do when the run has diverged."""


class ForensicsConfig(Section):
    """Reports on steps that could not be used: `<run.output_dir>/incidents/step-000123/report.md`."""

    enabled: bool = True
    """Compute such a step again at once, to find the layer, the operation and the samples that did it. Changes nothing
    that learns, and costs nothing as long as all steps can be used."""
    max_reports: PositiveInt = 5
    """Incidents explained in a run; later ones are only counted."""
    max_samples: PositiveInt = 64
    """Samples of a step that are computed one by one, to rank them."""
    keep_weights: bool = True
    """Put the weights of that moment beside the report, for tools/diagnose.py: as large as a saved model."""


class FaultConfig(Section):
    """One fault on demand, to see the guard at work."""

    step: PositiveInt
    """Attempted step, counted from 1, at which it happens."""
    kind: Literal[
        "nan_loss",
        "inf_grad",
        "nan_grad",
        "huge_grad",
        "loss_spike",
        "overflow",
        "nan_parameter",
        "nan_embedding",
        "nan_input",
        "corrupt_label",
        "grow_weights",
        "raise",
        "block",
        "withhold",
    ]
    """nan_loss, loss_spike: the loss becomes NaN, or a thousand times larger. inf_grad, nan_grad, huge_grad: one
    gradient element becomes inf, NaN, or 1e30 larger. overflow: on their way back all gradients become 1e30 times
    larger. nan_parameter: one element of a parameter becomes NaN, for good; nan_embedding: its `row` does. nan_input:
    the numbers of a micro-batch's first sample become NaN. corrupt_label: in `tensor` the first sample's numbers become
    10,000 times larger, or, where they are whole numbers, every sample gets those of the one before it. grow_weights:
    all weights grow by a tenth; with many `steps`, the run diverges. raise: the forward pass raises. block: the process
    waits for ever. withhold: the step is not done."""
    steps: PositiveInt = 1
    """It happens in that many steps in a row."""
    rank: NonNegativeInt = 0
    """The process in which it happens; what changes parameters, and `withhold`, happens in all."""
    parameter: str = "*"
    """Pattern of the parameter's name for gradients and parameters; the first match is hit."""
    row: NonNegativeInt = 0
    """nan_embedding: which row of the parameter."""
    tensor: str = "*"
    """corrupt_label: pattern of the name of the batch's tensor; the first match is hit."""


class Recipe(Section):
    """A whole training run. `task` and `data` hold the sections of the task that `task.target` names."""

    run: RunConfig
    task: TaskConfig
    data: DataConfig
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    clip: ClipConfig = ClipConfig()
    amp: AmpConfig = AmpConfig()
    stability: StabilityConfig = StabilityConfig()
    forensics: ForensicsConfig = ForensicsConfig()
    faults: tuple[FaultConfig, ...] = ()
    """Faults on demand; none in a real run."""
    smoke: dict[str, Any] = {}
    """Overrides (dotted keys or nested sections) with which the recipe runs in seconds on made-up data: `--smoke`."""
