"""What a shell evaluates to complete the words of a command; other words are names of files."""

from __future__ import annotations

from collections.abc import Iterable

SHELLS = ("bash", "zsh")


def completion(command: str, words: Iterable[str], shell: str) -> str:
    """
    Return the lines for a shell.

    >>> completion("mp-all", ["stat", "top"], "bash")
    'complete -o default -W "stat top" mp-all'
    """
    line = f'complete -o default -W "{" ".join(words)}" {command}'
    return f"autoload -U +X bashcompinit && bashcompinit\n{line}" if shell == "zsh" else line
