"""Shortlists: which target pieces a source's pieces may become, and Marian's files of them."""

import struct
from collections import Counter

import numpy as np
import pytest

from headgates.data.shortlist import Shortlist, read_probabilities, read_shortlist, strongest
from headgates.data.text import DataError

LISTS = [[], [7, 3, 3], [9], [2, 3]]


def hashed(words: list[int]) -> int:
    """boost::hash_combine over 64-bit words, as Marian's util::hashMem."""
    seed = 0
    for word in words:
        seed = (seed ^ (word + 0x9E3779B9 + seed * 64 % 2**64 + seed // 4)) % 2**64
    return seed


def test_a_file_has_the_layout_and_the_checksum_of_marian_s(tmp_path):
    path = tmp_path / "lex.bin"
    Shortlist.of(LISTS, first=2, best=5).write(path)
    body = struct.pack("<4Q5Q5I", 2, 5, 5, 5, 0, 0, 2, 3, 5, 3, 7, 9, 2, 3)
    words = [*struct.unpack("<11Q", body[:88])]  # 92 bytes: the last id is no whole word
    assert path.read_bytes() == struct.pack("<2Q", 0xF11A48D5013417F5, hashed(words)) + body
    found = read_shortlist(path)
    assert (found.first, found.best, found.sources) == (2, 5, 4)
    assert [found.of_piece(i).tolist() for i in range(4)] == [[], [3, 7], [9], [2, 3]]


def test_a_batch_has_the_candidates_of_all_its_pieces_the_first_ids_and_those_asked_for():
    shortlist = Shortlist.of(LISTS, first=2)
    assert shortlist.candidates([1, 3, 1], always=[8, 0]).tolist() == [0, 1, 2, 3, 7, 8]
    assert shortlist.candidates([]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:-1], "its header says"),
        (lambda content: content[:40], "no binary shortlist"),
        (lambda content: b"\0" + content[1:], "no binary shortlist"),
        (lambda content: content[:-9] + b"\7" + content[-8:], "by its checksum"),
        (lambda content: content[:32] + struct.pack("<Q", 2**61) + content[40:], "its header says"),
    ],
)
def test_a_file_that_was_cut_or_changed_is_refused(tmp_path, change, words):
    path = tmp_path / "lex.bin"
    Shortlist.of(LISTS).write(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=words):
        read_shortlist(path)


@pytest.mark.parametrize("offsets", [[0, 3, 2, 4], [0, 1, 2, 3], [1, 2, 3, 4]])
def test_lists_that_overlap_or_end_elsewhere_are_refused(tmp_path, offsets):
    path = tmp_path / "lex.bin"
    Shortlist(0, 2, np.array(offsets), np.arange(4)).write(path)
    with pytest.raises(DataError, match="overlap"):
        read_shortlist(path)


def test_a_shortlist_of_other_vocabularies_is_refused():
    shortlist = Shortlist.of(LISTS)
    assert shortlist.check(4, 10) is shortlist
    for sizes in ((5, 10), (4, 9)):
        with pytest.raises(DataError, match="make one for its vocabularies"):
            shortlist.check(*sizes)


def test_the_strongest_links_are_those_of_a_count_by_hand():
    luck = np.random.default_rng(0)
    links, weights = luck.integers(0, 7, (400, 2)), luck.integers(1, 4, 400).astype(float)
    sums = Counter[tuple[int, int]]()
    for (source, target), weight in zip(links.tolist(), weights.tolist(), strict=True):
        sums[source, target] += weight
    for source, row in enumerate(strongest(links, weights, 8, 3)):
        own = sorted((-total, t) for (s, t), total in sums.items() if s == source)
        assert row.tolist() == [t for _, t in own[:3]]


def test_marian_s_text_is_read_by_probability_without_what_the_vocabularies_lack(tmp_path):
    path = tmp_path / "lex.s2t"
    path.write_text(
        "b x 0.2\nc x 0.5\nd x 0.3\nNULL x 0.9\nb NULL 0.1\nb y 1e-3\nb ? 0.4\n", encoding="utf-8"
    )
    sources, targets = {"x": 0, "y": 2}, {"b": 1, "c": 4, "d": 3}
    found = read_probabilities(path, sources, targets, first=1, best=2)
    assert [found.of_piece(i).tolist() for i in range(3)] == [[3, 4], [], [1]]
    assert (found.first, found.best) == (1, 2)
    path.write_text("b x 0.2\nc x\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 2: expected a target piece"):
        read_probabilities(path, sources, targets, first=1, best=2)
