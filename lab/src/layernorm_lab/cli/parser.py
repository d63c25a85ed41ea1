"""How every command reads its words: one layout for all help pages, and one line for everything that is wrong."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UsageError, unknown, wrapped
from ..runs.schema import type_name

WIDTH = 80
"""The columns that a help page takes at most."""

_SIGNS: dict[Any, str] = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
"""The sign of each type of value on a help page."""


class Parser(argparse.ArgumentParser):
    """Reads the words of one command. What is wrong is a UsageError, which says what was given and what is expected.

    Args:
        command: the words that name it, such as `run mnist`.
        about: the paragraphs at the top of its help page.
        words: what it takes besides options, for the line of its usage.
        examples: command lines for the end of the page.
        lists: tables between the paragraphs and the options: (a heading, its entries as a name and a text).
    """

    def __init__(
        self,
        command: str,
        about: Sequence[str],
        words: str = "",
        examples: Sequence[str] = (),
        lists: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
    ) -> None:
        usage = " ".join(word for word in ("layernorm", command, words, "[OPTIONS]") if word)
        texts = [*(textwrap.fill(text, WIDTH) for text in about), *(table(heading, items) for heading, items in lists)]
        end = "\n".join(["examples:", *(f"  {example}" for example in examples)]) if examples else ""
        super().__init__(
            usage=usage, description="\n\n".join(texts), epilog=end, formatter_class=_Layout, allow_abbrev=False,
            add_help=False,
        )  # fmt: skip
        self._negative_number_matcher = re.compile(r"-\.?\d.*")  # also -1e-3 is a value, not an option
        self._flags = ["--help"]
        self._groups: dict[str, Any] = {}

    def _group(self, title: str) -> Any:
        if title not in self._groups:
            self._groups[title] = self.add_argument_group(title)
        return self._groups[title]

    def word(self, field: str, sign: str, about: str, **how: Any) -> None:
        """Adds what is given without an option's name. Its sign stands for it on the help page."""
        if "type" in how:
            how["type"] = _reader(sign, how["type"])
        self._group("arguments").add_argument(field, metavar=sign, help=about, **how)

    def option(
        self,
        flag: str,
        kind: Any,
        about: str,
        default: Any = None,
        *,
        field: str | None = None,
        several: bool = False,
        title: str = "options",
    ) -> None:
        """Adds an option. Its help tells the choices and the default.

        Args:
            flag: its name, with two dashes.
            kind: a type, a tuple of the texts to choose from, or a type or such texts, as `float | Literal["steady"]`.
                An option of the type `bool` takes no value and changes the default; `--no-NAME` changes one that is
                True.
            about: its help. Without a default it says what happens without the option.
            default: its value if it is not given. None: there is none.
            field: its name among the values that are read. None: the flag's.
            several: whether it takes several values.
            title: the heading under which it stands on the help page.
        """
        field, group = field or flag.removeprefix("--").replace("-", "_"), self._group(title)
        if kind is bool:
            flag = flag.replace("--", "--no-", 1) if default else flag
            about = f"not: {about}" if default else about
            self._flags.append(flag)
            group.add_argument(flag, dest=field, action="store_const", const=not default, default=default, help=about)
            return
        self._flags.append(flag)
        notes = [f"one of {', '.join(kind)}"] if isinstance(kind, tuple) else []
        if default not in (None, "", ()):
            notes.append(f"default: {' '.join(map(str, default if several else [default]))}")
        if notes:
            about += f" [{'; '.join(notes)}]"
        sign = "NAME" if isinstance(kind, tuple) else _SIGNS[next(iter(typing.get_args(kind)), kind)]
        many: dict[str, Any] = {"nargs": "+"} if several else {}
        reader = _reader(flag, kind)
        group.add_argument(flag, dest=field, type=reader, default=default, metavar=sign, help=about, **many)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Reads the words. If they ask for help, it is printed, and a SystemExit ends the command."""
        if "-h" in words or "--help" in words:
            self.print_help()
            self.exit()
        values, rest = self.parse_known_intermixed_args(list(words))
        if rest and rest[0].startswith("--") and rest[0] != "--":
            raise unknown("option", rest[0].partition("=")[0], self._flags)
        if rest:
            raise UsageError(f"unexpected {rest[0]!r}; expected: {self.usage}")
        return values

    def error(self, message: str) -> NoReturn:
        """Raises argparse's complaint as a UsageError, in layernorm's words."""
        count = re.fullmatch(r"argument (\S+): expected (.*) arguments?", message)
        if count:
            raise UsageError(f"{count[1]} needs {count[2]} value")
        valued = re.fullmatch(r"argument (\S+): ignored explicit argument (.*)", message)
        if valued:
            raise UsageError(f"{valued[1]} takes no value, got {valued[2]}")
        missing = message.replace("the following arguments are required:", "missing:")
        raise UsageError(f"{missing}; expected: {self.usage}")


class _Layout(argparse.RawDescriptionHelpFormatter):
    """The layout of a help page. A long name stays whole, also where it has hyphens."""

    def __init__(self, prog: str, **how: Any) -> None:
        width = min(WIDTH, shutil.get_terminal_size().columns)
        super().__init__(prog, **{**how, "width": width, "max_help_position": 24})

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        several = action.nargs in ("+", "*")  # argparse would write N [N ...]
        return f"{action.metavar} ..." if several else super()._format_args(action, default_metavar)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def table(heading: str, items: Sequence[tuple[str, str]], least: int = 0) -> str:
    """Writes a heading, and below it a line or more for each name with its text. The names take `least` columns."""
    inside = max(least, *(len(name) for name, _ in items)) + 4
    return "\n".join([f"{heading}:", *(wrapped(f"  {name:<{inside - 2}}{text}", inside) for name, text in items)])


def _reader(flag: str, kind: Any) -> Callable[[str], Any]:
    """Makes the function that reads an option's value. For an unknown choice it suggests the nearest one."""

    def read(text: str) -> Any:
        if isinstance(kind, tuple):
            if text not in kind:
                raise unknown(flag.removeprefix("--"), text, kind)
            return text
        try:
            if typing.get_args(kind):
                first, texts = typing.get_args(kind)
                return text if text in typing.get_args(texts) else first(text)
            if kind is Path and not text:  # an unset variable of a shell, which would be the current folder
                raise ValueError
            return kind(text)
        except ValueError:
            raise UsageError(f"{flag} must be {type_name(kind)}, got {text!r}") from None

    return read
