"""An LSTM that reads a window and forecasts what comes after it."""

from __future__ import annotations

from typing import final

import paddle


@final
class LstmForecaster(paddle.nn.Layer):
    """`paddle.nn.LSTM` over the rows of a window; a linear head on the top layer's last state."""

    def __init__(self, features: int, outputs: int, *, hidden: int, layers: int, dropout: float) -> None:
        """`features` in, `outputs` out; `dropout` acts between LSTM layers and before the head."""
        super().__init__()
        self.lstm = paddle.nn.LSTM(features, hidden, num_layers=layers, dropout=dropout if layers > 1 else 0.0)
        self.dropout = paddle.nn.Dropout(dropout)
        self.head = paddle.nn.Linear(hidden, outputs)

    def forward(self, inputs: paddle.Tensor) -> paddle.Tensor:
        """[samples, rows, features] → [samples, outputs], both in scaled units."""
        states, _ = self.lstm(inputs)
        return self.head(self.dropout(states[:, -1]))
