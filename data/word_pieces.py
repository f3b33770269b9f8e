"""Which word of a tree each piece of a sentence belongs to: attention is between pieces, relations are
between words."""

from collections import Counter
from collections.abc import Sequence

from headgates.data.conllu import word_spans
from headgates.data.vocab import Vocabulary


def word_of_piece(vocab: Vocabulary, text: str, words: Sequence[str]) -> list[int | None]:
    """Return the number of the word, from 0, of every piece of `vocab.encode([text])`; None where nothing of
    the piece is in a word.

    words: side by side they are the text without its white space (`Tree.written`). A piece that spans two
    words belongs to the one with more characters in it, to the first where they are equal. A word may have no
    piece: if it has only zero-width characters, or lies whole in its neighbour's piece. Raises DataError if
    the words are not those of the text, or the vocabulary cannot say which characters its pieces stand
    for."""
    owner: list[int | None] = [None] * len(text)
    for number, (begin, end) in enumerate(word_spans(text, words)):
        owner[begin:end] = [number] * (end - begin)
    votes = (
        Counter(owner[i] for i in characters if owner[i] is not None) for characters in vocab.characters(text)
    )
    return [each.most_common(1)[0][0] if each else None for each in votes]  # of equal counts the first met
