"""Small `.question` files, and books that such files can be made from."""

import numpy as np

COUNTS = {"training": 40, "validation": 12, "test": 9}

THINGS = "apple boat clock drum egg flute glass hat".split()  # noqa: SIM905
NAMES = "Anna Bert Carla Dora Emil Frieda Gustav Hanna".split()  # noqa: SIM905


def question_text(passage, question, answer, names):
    """A file's text; the passage's sentences in lines of their own."""
    entities = "\n".join(f"{entity}:{name}" for entity, name in names.items())
    return f"http://x/y\n\n{passage}\n\n{question}\n\n{answer}\n\n{entities}\n"


def write_questions(folder, seed=0):
    """Who has what, in passages of two to six sentences of which one tells it. Each split has a word of its own."""
    random = np.random.default_rng(seed)
    for split, count in COUNTS.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            size = int(random.integers(2, 7))
            people, things = random.permutation(8)[:size], random.permutation(8)[:size]
            passage = [
                f"@entity{one} has {'the ' * int(random.integers(1, 4))}{THINGS[thing]} {split} ."
                for one, thing in zip(people, things, strict=True)
            ]
            names = {f"@entity{one}": NAMES[one] for one in people}
            text = question_text(
                "\n".join(passage), f"@placeholder has the {THINGS[things[0]]} ?", f"@entity{people[0]}", names
            )
            (folder / split / f"{number:03}.question").write_text(text)
    return folder


def write_books(folder, authors=("Ash", "Birch", "Cedar", "Dill"), sentences=60):
    """Two books of each author, in which people meet."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for author in authors:
        for number in range(2):
            lines = []
            for _ in range(sentences):
                one, two, three = (NAMES[place] for place in random.permutation(8)[:3])
                thing = THINGS[random.integers(8)]
                lines.append(f"Then {one} and {two} saw the {thing} of {three}.")
            (folder / f"B{number}_{author}.txt").write_text("\n".join(lines) + "\n")
    return folder
