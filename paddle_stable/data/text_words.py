"""What is written on rendered images: made-up words, signs, prices and numbers, and Chinese where a font has it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_SIGNS = [
    "OPEN",
    "EXIT",
    "SALE",
    "CAFE",
    "HOTEL",
    "BANK",
    "TAXI",
    "STOP",
    "PARK",
    "BUS",
    "METRO",
    "EXPRESS",
    "MARKET",
    "PHARMACY",
    "BAKERY",
    "RESTAURANT",
    "PARKING",
    "CENTRAL",
    "STATION",
    "TICKETS",
    "INFORMATION",
    "TOILETS",
    "ENTRANCE",
    "NOTICE",
    "DANGER",
    "CAUTION",
    "PRIVATE",
    "KEEP",
    "CLEAR",
    "WELCOME",
    "FRESH",
    "COFFEE",
    "FLOWERS",
    "BOOKS",
    "MUSIC",
    "CINEMA",
    "THEATRE",
    "MUSEUM",
    "GALLERY",
    "LIBRARY",
    "SCHOOL",
    "OFFICE",
    "FLOOR",
    "LIFT",
    "STAIRS",
    "PLATFORM",
    "GATE",
    "TERMINAL",
    "ARRIVALS",
]
_ONSETS = [
    "b",
    "c",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "w",
    "br",
    "cr",
    "dr",
    "fl",
    "gr",
    "pl",
    "pr",
    "sh",
    "sp",
    "st",
    "th",
    "tr",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ee", "io", "oo", "ou"]
_CODAS = ["", "", "", *["l", "m", "n", "r", "s", "t", "x", "ck", "ll", "nd", "ng", "nt", "rd", "rs", "st"]]
_HANZI = (
    "中国上海北京大小学生人民公司银行医院出口入开关门店路街号楼层电话服务中心水果蔬菜酒饭面包咖啡茶书音乐安全消防"
    "请勿停车禁止吸烟欢迎光临新鲜特价打折超市地铁站台左右前后东西南北春夏秋冬红黄蓝绿白黑金木火土山石田花草鱼鸟马牛"
)

Words = Callable[[np.random.Generator], str]


def latin_text(rng: np.random.Generator) -> str:
    """One line of one to three words or numbers."""
    kind = rng.random()
    if kind < 0.25:
        return _number(rng)
    count = int(rng.choice((1, 2, 3), p=(0.72, 0.23, 0.05)))
    return " ".join(_word(rng) for _ in range(count))


def chinese_text(rng: np.random.Generator) -> str:
    """Two to seven characters, as on a sign."""
    return "".join(_HANZI[place] for place in rng.integers(len(_HANZI), size=rng.integers(2, 8)))


def _word(rng: np.random.Generator) -> str:
    if rng.random() < 0.3:
        word = _SIGNS[rng.integers(len(_SIGNS))].lower()
    else:
        syllables = int(rng.integers(1, 4))
        word = "".join(_pick(_ONSETS, rng) + _pick(_VOWELS, rng) for _ in range(syllables)) + _pick(_CODAS, rng)
    style = rng.random()
    return word.upper() if style < 0.4 else word.capitalize() if style < 0.75 else word


def _number(rng: np.random.Generator) -> str:
    value = int(rng.integers(1, 10_000))
    forms = (
        f"{value}",
        f"${value / 100:.2f}",
        f"{value % 100}%",
        f"{value % 24:02d}:{value % 60:02d}",
        f"No. {value % 1000}",
        f"{value:04d}-{value % 977:03d}",
        f"{'ABCDEFGHKLM'[value % 11]}{value % 1000}",
    )
    return forms[rng.integers(len(forms))]


def _pick(parts: list[str], rng: np.random.Generator) -> str:
    return parts[rng.integers(len(parts))]
