"""Training PaddlePaddle models from YAML recipes, so that a run survives and explains exploding gradients."""

__version__ = "0.1.0"
