"""Which word of a tree each piece of a sentence belongs to: attention is between pieces, relations are between words.

SentencePiece normalises text before it cuts it (compatibility forms, spaces), and says for every character of the result which character
of the text it came from. The pieces side by side are that result, so a piece has characters of the text, and those have words."""

from collections import Counter
from collections.abc import Sequence

from data.conllu import shorten, word_spans
from data.parallel import DataError
from data.vocab import Vocab, Vocabulary

SPACE = "\u2581"  # what SentencePiece writes for a space, and before the first word


def word_of_piece(vocab: Vocabulary, text: str, words: Sequence[str]) -> list[int | None]:
    """Return the number of the word, from 0, of every piece of `vocab.encode([text])`; None where nothing of the piece is in a word.

    words: side by side they are the text without its white space (`Tree.written`). A piece that spans two words belongs to the one with
    more characters in it, to the first where they are equal; a space alone belongs to the word after it. A word may have no piece: if it
    has only zero-width characters, or lies whole in its neighbour's piece. Raises DataError if the words are not those of the text, or the
    vocabulary is not SentencePiece's."""
    if not isinstance(vocab, Vocab):
        raise DataError(f"the words of pieces are found for SentencePiece's vocabularies alone, and {vocab.path} is none")
    owner: list[int | None] = [None] * len(text)
    for number, (begin, end) in enumerate(word_spans(text, words)):
        owner[begin:end] = [number] * (end - begin)
    normalised, origins = vocab.processor.normalize(text, with_offsets=True)  # origins: per character, and one for the end
    pieces = vocab.processor.encode(text, out_type=str)
    if "".join(pieces) != normalised:
        raise DataError(f"the pieces of {shorten(text)!r} do not spell it out, so they have no words; is {vocab.path} a byte vocabulary?")
    found: list[int | None] = []
    at = 0
    for piece in pieces:
        end = at + len(piece)
        own = [origins[i] for i in range(at, end) if normalised[i] != SPACE] or origins[end : end + 1]
        votes = Counter(owner[i] for i in own if i < len(text) and owner[i] is not None)
        found.append(votes.most_common(1)[0][0] if votes else None)  # of equal counts the first met
        at = end
    return found
