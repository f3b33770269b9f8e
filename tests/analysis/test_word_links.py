"""Links between words that go together, beside those that were planted."""

from itertools import combinations

from headgates.analysis.word_links import word_links
from headgates.data.toy import toy_pairs


def test_links_of_words_that_go_together_are_those_that_were_planted():
    pairs, source, target = toy_pairs("valid")[:300], {}, {}
    ids = [
        (
            [source.setdefault(word, len(source)) for word in pair.words],
            [target.setdefault(word, len(target)) for word in pair.target_words],
        )
        for pair in pairs
    ]
    found = word_links(ids)
    right = sum(len({*links} & {*pair.alignment}) for links, pair in zip(found, pairs, strict=True))
    assert right / sum(map(len, found)) > 0.95
    assert right / sum(len(pair.alignment) for pair in pairs) > 0.85


def test_words_of_a_language_with_the_other_order_are_linked_across_places():
    pairs = [(words, [10 + word for word in reversed(words)]) for words in combinations(range(6), 3)]
    assert word_links(pairs) == [[(0, 2), (1, 1), (2, 0)]] * 20


def test_a_word_said_twice_is_linked_to_its_own_and_empty_sentences_have_no_links():
    assert word_links([([7, 8, 7], [17, 18, 17]), ([], [17]), ([], [])]) == [[(0, 0), (1, 1), (2, 2)], [], []]
    assert word_links([]) == []
