"""The prose linter reports clauses as subjects and retired words, and nothing else."""

from __future__ import annotations

import pytest

from tools import prose


def lines(path: str, text: str) -> list[int]:
    return [each.line for each in prose.check(path, text)]


@pytest.mark.parametrize(
    "text",
    [
        "What is small is copied.",
        "It works. Who asks waits.",
        "- Whoever asks waits.",
        "| a cell | What is small |",
        "**What bounds it.** One copy.",
        "A paragraph\n\nWhat follows is another.",
    ],
)
def test_a_clause_as_a_subject_is_reported(text: str) -> None:
    assert len(prose.check("page.md", text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "What is small? Few arrays.",
        "What if it dies here",
        "## When is an array shared?",
        "The bytes are copied, and what is small travels in the message.",
        "`What` is a name. ```\n",
        "```python\n# What is in a code block is code.\n```\n",
    ],
)
def test_questions_code_and_other_sentences_pass(text: str) -> None:
    assert prose.check("page.md", text) == []


def test_docstrings_and_comments_of_python_are_read_and_strings_are_not() -> None:
    source = '"""What it is."""\n\nx = "What a string says."  # fine\n# A comment.\n# Who reads it knows.\n'
    assert lines("module.py", source) == [1, 5]


def test_comments_of_c_are_read() -> None:
    assert lines("file.c", "/* Fine.\n * What follows is not. */\nchar *what;\n") == [2]


def test_the_name_of_a_test_begins_with_a_noun() -> None:
    assert lines("test_x.py", "def test_what_is_small_is_copied() -> None: ...\n") == [1]


@pytest.mark.parametrize(
    "text", ["nursery", "nurseries_of_nursery", "my_nursery.py", "NurseryChild", "NURSERY", "the nurserys"]
)
def test_a_retired_word_is_reported(text: str) -> None:
    (found,) = prose.check("notes.toml", text)
    assert "zygote" in found.message


@pytest.mark.parametrize("text", ["arenaceous", "subarena", "MPSHM_ARENA_BYTES", "SOURCE_DATE_EPOCH", "doorbell"])
def test_other_words_and_allowed_texts_pass(text: str) -> None:
    assert prose.check("notes.toml", text) == []


def test_a_phrase_is_found_across_a_line_and_in_an_identifier() -> None:
    assert lines("page.md", "it lets\ngo\n") == [1]
    assert lines("module.py", "running_out = 1\n") == [1]


def test_a_retired_word_in_a_path_is_reported() -> None:
    assert [each.message for each in prose.check("src/janitor.toml", "")] == [
        "the path: 'janitor' is retired: finalizer queue"
    ]
