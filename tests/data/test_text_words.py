"""What is written: never empty, never one word only, a function of the generator."""

from __future__ import annotations

import numpy as np
import pytest

from paddle_stable.data.text_words import Words, chinese_text, latin_text


@pytest.mark.parametrize("words", [latin_text, chinese_text])
def test_texts_differ_and_follow_the_generator(words: Words) -> None:
    texts = [words(np.random.default_rng(seed)) for seed in range(300)]
    assert texts == [words(np.random.default_rng(seed)) for seed in range(300)]
    assert len(set(texts)) > 250
    assert all(text == text.strip() and 0 < len(text) <= 60 for text in texts)


def test_scripts_are_what_they_say() -> None:
    assert all(latin_text(np.random.default_rng(seed)).isascii() for seed in range(100))
    assert all("\u4e00" <= c <= "\u9fff" for seed in range(100) for c in chinese_text(np.random.default_rng(seed)))
