"""Reads the pages of the documentation: fences, the markers that are not rendered, links and anchors."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,})(?P<language>[^`]*)$")


def all_pages():
    """Every page whose commands are run: the documentation, the README and those of the examples."""
    return [ROOT / "README.md", *sorted(DOCS.glob("**/*.md")), *sorted((ROOT / "examples").glob("**/README.md"))]


class Block:
    """A fenced block, or a comment that is not rendered. Lines count from 0."""

    def __init__(self, kind, text, first, last, indent=""):
        self.kind, self.text, self.first, self.last, self.indent = kind, text, first, last, indent


def blocks(text):
    """The fenced blocks (kind: their language) and the comments (kind: `comment`) of a page, in order."""
    lines, found, at = text.split("\n"), [], 0
    while at < len(lines):
        if match := FENCE.match(lines[at]):
            end, indent = at + 1, match["indent"]
            closing = re.compile(rf"^ *{re.escape(match['marks'])}[`~]* *$")
            while end < len(lines) and not closing.match(lines[end]):
                end += 1
            body = [line.removeprefix(indent) for line in lines[at + 1 : end]]
            found.append(Block(match["language"].strip() or "plain", "\n".join(body), at, end, indent))
            at = end
        elif lines[at].strip().startswith("<!--"):
            end = at
            while end < len(lines) - 1 and "-->" not in lines[end]:
                end += 1
            comment = "\n".join(lines[at : end + 1]).strip().removeprefix("<!--").split("-->")[0]
            found.append(Block("comment", comment.strip("\n "), at, end))
            at = end
        at += 1
    return found


def prose(text):
    """The page without fenced blocks and comments; line numbers stay."""
    lines = text.split("\n")
    for block in blocks(text):
        for at in range(block.first, min(block.last + 1, len(lines))):
            lines[at] = ""
    return "\n".join(lines)


def anchors(text):
    """The anchors of a page's headings, as GitHub and mdBook make them."""
    found, seen = set(), {}
    for line in prose(text).split("\n"):
        if match := re.match(r"^#{1,6} +(.*?) *#*$", line):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1])
            anchor = "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            found.add(f"{anchor}-{count}" if count else anchor)
    return found


def links(text):
    """(line, target) of each link of a page."""
    for number, line in enumerate(prose(text).split("\n"), 1):
        bare = re.sub(r"`[^`]*`", "", line)
        for match in re.finditer(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", bare):
            yield number, match[1]


if __name__ == "__main__":
    page, language, number = sys.argv[1:]
    print([block.text for block in blocks((ROOT / page).read_text()) if block.kind == language][int(number)])
