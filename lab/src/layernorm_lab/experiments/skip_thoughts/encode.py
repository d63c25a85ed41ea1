"""`layernorm encode RUN FILE --out vectors.npy`: the sentences of a file as vectors."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...config import option
from ...errors import RunError, UsageError
from ...protocol import Tool
from ...runs.files import decoded, read_content, write_atomic
from ...runs.folder import Run
from .trained import sentence_words, trained_encoder


@dataclass(frozen=True)
class EncodeOptions:
    """The options of `layernorm encode`."""

    out: Path = option(Path("vectors.npy"), "file to write: float32 [sentences, units], each row of length 1")
    end: bool = option(False, "also encode the end of a sentence, as for SICK")
    data: Path | None = option(None, "folder that has the folder `books` (else the one of the run's training)")


def write_vectors(run: Run, files: Sequence[str], options: EncodeOptions) -> list[str]:
    """Writes the vectors of a file's sentences. The file has one sentence in each line."""
    if len(files) > 1:
        raise UsageError(f"give one file of sentences, got {len(files)}: {', '.join(files)}")
    path = Path(files[0])
    text = decoded(read_content(path), path, "utf-8-sig")
    if options.out.exists() and options.out.samefile(path):
        raise UsageError(f"--out {options.out} is the file of sentences itself; give another, such as vectors.npy")
    if not text.strip():
        raise RunError(f"{path} is empty: expected one sentence a line")
    rows = sentence_words(text.replace("\r\n", "\n").removesuffix("\n").split("\n"), f"{path}: line")
    encoder, _, _, update = trained_encoder(run, options.data)
    vectors = encoder.last_states(rows, options.end).numpy()
    file = io.BytesIO()
    np.save(file, vectors, allow_pickle=False)
    write_atomic(options.out, file.getvalue())
    unknown = sum(word not in encoder.vocabulary for row in rows for word in row)
    share = f"{unknown} of {sum(map(len, rows))} words are outside the vocabulary"
    return [
        f"wrote {options.out}: {len(vectors)} sentences, {vectors.shape[1]} numbers each (update {update}; {share})"
    ]


TOOL = Tool(
    experiment="skip-thoughts",
    texts="FILE",
    options=EncodeOptions,
    ask=write_vectors,
    examples=("layernorm encode RUN sentences.txt --out vectors.npy",),
)
