"""How many tokens a text has: by a tokenizer, or by an estimate that is called one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from oppo_sim.errors import OppoError
from oppo_sim.files import sha256_of
from oppo_sim.traces.importers.options import ImportOptions

TOKENIZER_FILE = "tokenizer.json"
USUAL_CHARS = 4.0
"""Characters a token, of English prose under the tokenizers of today's models."""
ASSUMED = (
    f"no tokenizer was given: lengths are estimated at {USUAL_CHARS:g} characters a token, a quarter off"
    " where texts are code, mathematics or not English: count them with --tokenizer (a tokenizer.json, or the"
    " model's folder), or say --chars-per-token"
)
"""What is said of that estimate."""


@dataclass(frozen=True)
class Counter:
    """Counts the tokens of a text, special tokens not added."""

    count: Callable[[str], int]
    described: str
    """For the provenance."""
    end_tokens: int
    """What a finished response has beyond its text: its end token (0 for an estimate)."""
    estimate: bool = False
    assumed: bool = False
    """An estimate that nobody asked for."""


def make_counter(options: ImportOptions) -> Counter:
    """The counter that the options ask for; else the usual estimate. Raises OppoError if it cannot be had."""
    if options.chars_per_token is not None:
        return _estimate(options.chars_per_token)
    if options.tokenizer is None:
        return usual_estimate()
    path = Path(options.tokenizer)
    if not path.exists():
        raise OppoError(
            f"tokenizer {path} does not exist: give a {TOKENIZER_FILE}, or a model's folder on this machine"
            " (nothing is downloaded)"
        )
    file = path / TOKENIZER_FILE if path.is_dir() else path
    return _from_file(file) if file.is_file() else _from_folder(path)


def usual_estimate() -> Counter:
    """Where nobody said how to count."""
    return replace(_estimate(USUAL_CHARS), assumed=True)


def _estimate(chars: float) -> Counter:
    def count(text: str) -> int:
        return max(1, round(len(text) / chars)) if text else 0

    return Counter(count, f"estimated: {chars:g} characters a token; not counted", 0, estimate=True)


def _from_file(file: Path) -> Counter:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise OppoError(
            "counting tokens of text needs the tokenizers library: pip install 'oppo-toolkit[tokenizers]', or"
            " estimate with --chars-per-token"
        ) from None
    digest = sha256_of(file)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise OppoError(
            f"{file} is no tokenizer ({_first_line(error)}): give the {TOKENIZER_FILE} of the model"
        ) from None
    # A file may carry settings of its last use, which would cut long answers or fill short ones.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return Counter(count, f"counted with {file.name}, sha256 {digest}", 1)


def _from_folder(folder: Path) -> Counter:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise OppoError(
            f"{folder} holds no {TOKENIZER_FILE}, and the transformers library, which could read it, is not"
            f" installed: give a {TOKENIZER_FILE}, or pip install transformers"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # many kinds, by tokenizer
        raise OppoError(
            f"{folder} holds no tokenizer ({_first_line(error)}): give the folder of the model, or its"
            f" {TOKENIZER_FILE}"
        ) from None

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False, truncation=False))

    return Counter(count, f"counted with {type(tokenizer).__name__} of {folder.name}", 1)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
