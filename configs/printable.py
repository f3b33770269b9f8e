"""Text of others on a terminal: a server's words, a file's name. Importing this needs the standard library
alone."""

import unicodedata


def printable(text: object) -> str:
    """The text with control characters, and what else a terminal does not print, spelt out (`\\x1b`); lines
    and tabs stay."""
    spelt = (
        c
        if c in "\n\t" or not unicodedata.category(c).startswith("C")
        else c.encode("unicode_escape").decode()
        for c in str(text)
    )
    return "".join(spelt)
