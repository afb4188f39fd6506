"""Text that is not ours as Markdown: read back by a CommonMark parser, it is the text and nothing else."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fusescope.graph.units import printable
from fusescope.report.markdown_text import LONGEST_NAME, bullets, code, fenced, names, sourced, table, text

PARSER = MarkdownIt("commonmark").enable("table")
HOSTILE = (
    "<script>alert(1)</script>",
    "[click](https://evil.example)",
    "![x](//evil.example/x.png)",
    "https://evil.example and www.evil.example and mail@evil.example",
    "a|b\\|c\\\\|d",
    "`` ` ``",
    "**bold** _it_ ~~gone~~ $x$ &lt; &#60;",
    "line\nline\r\n\n# heading\x1b[2J",
    "- item",
    "1. item",
    "---",
    "===",
    "# title #",
    "    four spaces",
    "\u202eright to left \U0001f600",
    "\\",
    "<!-- ",
)
"""Names that try to be something else."""

PLAIN = {"inline", "text", "softbreak", "code_inline", "text_special"}

hostile = st.one_of(st.sampled_from(HOSTILE), st.text(alphabet=st.sampled_from("ab1.<>&|\\`*_[]()#-+=~!$@:/ \n\t\x00")))


def inline(tokens: list[Token]) -> list[Token]:
    """The inline tokens of a document, in order."""
    return [child for token in tokens for child in (token.children or [])]


def shown(tokens: list[Token]) -> str:
    """What a reader sees of inline tokens."""
    return "".join(token.content for token in inline(tokens))


def squeezed(words: str) -> str:
    """Text as HTML shows it: runs of spaces are one space."""
    return re.sub(" +", " ", words).strip()


class TestText:
    """`text`: prose."""

    @given(hostile)
    @example("www.evil.example")
    @example("a@b.example")
    def test_it_reads_back(self, words: str) -> None:
        """In a list, whatever the text, there is one item with that text, without HTML, link, image or emphasis."""
        tokens = PARSER.parse(bullets(["start", text(words)]))
        assert [token.type for token in tokens].count("list_item_open") == 2
        items = [token for token in tokens if token.type == "inline"][1:]
        assert {child.type for child in inline(items)} <= PLAIN
        assert squeezed(shown(items)) == squeezed(printable(words))

    @pytest.mark.parametrize("words", HOSTILE)
    def test_github_links_nothing(self, words: str) -> None:
        """GitHub links bare addresses: no address is left for it outside of a code span."""
        prose = re.sub(r"(`+).*?\1(?!`)", "", text(words).replace("\\`", ""))
        assert not re.search(r"://|www\.|@|\$", prose)

    def test_versions_and_dates_stay_readable(self) -> None:
        """What only looks like a list is left as it is."""
        assert text("1.7.1") == "1.7.1"
        assert text("2026-12-01") == "2026-12-01"
        assert text("-62.3 MB") == "-62.3 MB"


class TestCode:
    """`code`: names."""

    @given(hostile)
    @example("a`b")
    @example(" spaces ")
    @example("|")
    @example("a\\|b")
    def test_a_name_in_a_table(self, name: str) -> None:
        """A cell holds the name, the cell beside it is untouched, and there are as many cells as there should be."""
        tokens = PARSER.parse(table(("name", "count"), [(code(name), "7")]))
        cells = [tokens[place + 1] for place, token in enumerate(tokens) if token.type == "td_open"]
        assert len(cells) == 2
        assert squeezed(shown(cells[:1])) == squeezed(printable(name) or "-")
        assert shown(cells[1:]) == "7"
        assert {child.type for child in inline(cells)} <= PLAIN

    def test_a_long_name(self) -> None:
        """A name of 5,000 characters is cut, and says so."""
        assert code("x" * 5000) == f"`{'x' * (LONGEST_NAME - 1)}…`"

    def test_some_of_many(self) -> None:
        """The first names, and how many there are beside them."""
        assert names(["a", "b", "c"], 2) == "`a`, `b` and 1 more"
        assert names(["a", "b"], 2) == "`a`, `b`"


class TestSourced:
    """`sourced`: where a fact comes from."""

    def test_addresses_are_links(self) -> None:
        """An address is a link, without the full stop behind it, and the rest is text."""
        tokens = inline(PARSER.parse(sourced("a <b> document: https://docs.nvidia.com/a/b.html. More")))
        assert [token.attrs["href"] for token in tokens if token.type == "link_open"] == [
            "https://docs.nvidia.com/a/b.html"
        ]
        assert "".join(token.content for token in tokens) == "a <b> document: https://docs.nvidia.com/a/b.html. More"

    def test_nothing_but_https(self) -> None:
        """No other scheme becomes a link."""
        tokens = inline(PARSER.parse(sourced("javascript:alert(1) http://a.example data:text/html,x")))
        assert {token.type for token in tokens} <= PLAIN


class TestFenced:
    """`fenced`: commands."""

    def test_a_fence_inside(self) -> None:
        """A line that would close the block does not, and a line break in an argument is shown."""
        tokens = PARSER.parse(fenced(["cat '```'", "echo 'a\nb'"], "bash"))
        assert [(token.type, token.content) for token in tokens] == [("fence", "cat '```'\necho 'a\\nb'\n")]
