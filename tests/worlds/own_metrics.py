"""Metrics as a user writes them, and such as fail."""

SEEN: list[tuple[str, str, str]] = []  # what `shared_words` was given


def shared_words(sources, outputs, references):
    """Of each line, 100 times the share of the reference's words that the output has, and 7 more where the
    output has as many words as the source."""
    SEEN.extend(zip(sources, outputs, references, strict=True))
    return [points(*line) for line in zip(sources, outputs, references, strict=True)]


def points(source: str, output: str, reference: str) -> float:
    wanted, words = set(reference.split()), set(output.split())
    return 100 * len(wanted & words) / len(wanted) + 7 * (len(source.split()) == len(output.split()))


def raises(sources, outputs, references):
    return [len(source) / len(output) for source, output in zip(sources, outputs, strict=True)]


def one_number(sources, outputs, references):
    return 0.5


def too_few(sources, outputs, references):
    return [0.5]


def words(sources, outputs, references):
    return ["good" for _ in outputs]


def nothing(sources, outputs, references):
    pass


def not_a_number(sources, outputs, references):
    return [0.5 if output else float("nan") for output in outputs]


def enormous(sources, outputs, references):
    return [1e308] * len(outputs)


def leaves(sources, outputs, references):
    raise SystemExit(3)


def of_short_texts(sources, outputs, references):
    if len(outputs) > 2:
        raise RuntimeError("out of memory")
    return [0.5] * len(outputs)


NO_FUNCTION = 3
