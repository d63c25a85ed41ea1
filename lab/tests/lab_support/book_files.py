"""Small books, and small files of the form of SICK and of the four classification sets."""

import numpy as np

NOUNS = [
    "dog",
    "cat",
    "boy",
    "girl",
    "man",
    "woman",
    "house",
    "garden",
    "river",
    "road",
    "letter",
    "hat",
    "horse",
    "king",
    "queen",
    "ship",
]
VERBS = ["saw", "took", "left", "found", "kept", "lost", "met", "liked", "drew", "held", "heard", "sold"]
WORDS = ["old", "young", "red", "blue", "small", "great", "dark", "cold", "quiet", "happy", "poor", "rich", "tall"]

BOOKS = {"A1_Brown": 40, "A2_Brown": 30, "B_Green": 50, "C_White": 40, "D_Black": 40}
"""Paragraphs of each book; Brown has two."""


def sentence(random):
    """Seven to eleven words and a point."""
    noun, verb, word = (lambda: random.choice(NOUNS)), (lambda: random.choice(VERBS)), (lambda: random.choice(WORDS))
    parts = ["The", word(), noun(), verb(), "the", noun()]
    parts += ["and", "the", word(), noun(), "too"][: random.choice([0, 1, 5])] if random.random() < 0.7 else []
    return " ".join(parts) + "."


def write_text(folder, seed=0, books=BOOKS):
    """A folder with the folders `books`, `sick` and `sentences`."""
    random = np.random.default_rng(seed)
    for name in ("books", "sick", "sentences"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for title, paragraphs in books.items():
        lines = [" ".join(sentence(random) for _ in range(random.integers(1, 5))) for _ in range(paragraphs)]
        (folder / "books" / f"{title}.txt").write_text("\n".join(lines) + "\n")
    write_sick(folder / "sick", random)
    write_sentences(folder / "sentences", random)
    return folder


def write_sick(folder, random):
    """Pairs whose score tells how many words they share."""
    for name, count in (("SICK_train", 60), ("SICK_trial", 20), ("SICK_test_annotated", 30)):
        lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
        for number in range(count):
            first = sentence(random)
            second = first if random.random() < 0.3 else sentence(random)
            one, other = set(first.split()), set(second.split())
            score = 1 + 4 * len(one & other) / len(one | other)
            lines.append(f"{number + 1}\t{first}\t{second}\t{score:.1f}\tNEUTRAL")
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def write_sentences(folder, random, count=25):
    """Two files for each set; a class has a word of its own. One line is Latin-1."""
    files = ("rt-polarity", "custrev", "mpqa")
    for first, second in (
        *((f"{name}.pos", f"{name}.neg") for name in files),
        ("quote.tok.gt9.5000", "plot.tok.gt9.5000"),
    ):
        for name, word in ((first, "splendid"), (second, "dreadful")):
            lines = [f"{sentence(random).lower()[:-1]} {word} caf\u00e9 ." for _ in range(count)]
            (folder / name).write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
