"""What `rye --help` says: every command with its usage, arguments and options."""
import re
import subprocess

FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


class Command:
    """One command as its help shows it. `words` is the path: `("thread", "show")`."""

    def __init__(self, words, text):
        self.words = words
        sections, name = {"about": []}, "about"
        for line in text.rstrip().split("\n"):
            if match := re.match(r"^(Usage|Commands|Arguments|Options|Examples):( .*)?$", line):
                name = match[1].lower()
                sections[name] = [match[2].strip()] if match[2] else []
            elif name in ("options", "arguments") and line and not line.startswith(" "):
                name = "examples"
                sections.setdefault(name, []).append(line)
            else:
                sections[name].append(line)
        self.about = "\n".join(sections["about"]).strip()
        self.usage = "\n".join(sections.get("usage", [])).strip()
        self.examples = "\n".join(sections.get("examples", [])).strip()
        self.subcommands = [m[1] for line in sections.get("commands", []) if (m := re.match(r"^  ([a-z][a-z-]*)(?:  |$)", line))]
        self.arguments = entries(sections.get("arguments", []))
        self.options = entries(sections.get("options", []))

    @property
    def name(self):
        return " ".join(("rye", *self.words))

    def flags(self):
        """Every way to write an option: `-p`, `--project`."""
        return {flag for head, _ in self.options for flag in FLAG.findall(head)}

    def flags_with_value(self):
        """The options that the next word belongs to."""
        return {flag for head, _ in self.options if "<" in head for flag in FLAG.findall(head)}


def entries(lines):
    """(head, text) of each option or argument: heads are indented by less than their text."""
    found = []
    for line in lines:
        if re.match(r"^ {2,6}\S", line):
            head, _, text = line.strip().partition("   ")
            found.append((head, [text.strip()] if text.strip() else []))
        elif found:
            found[-1][1].append(line.strip())
    return [(head, tidy(text)) for head, text in found]


def tidy(lines):
    """One line of text; possible values follow in a row."""
    text, values, is_value = [], [], False
    for line in lines:
        if line.startswith("Possible values:"):
            is_value = True
        elif is_value and line.startswith("- "):
            values.append(re.sub(r": +", ": ", line[2:]))
        elif is_value and line and values:
            values[-1] += " " + line
        elif line:
            text.append(line)
    joined = " ".join(text)
    return f"{joined} ({'; '.join(values)})" if values else joined


def walk(rye, words=()):
    """A command and all below it."""
    done = subprocess.run([rye, *words, "--help"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "NO_COLOR": "1", "COLUMNS": "200", "HOME": "/nonexistent"})
    if done.returncode:
        raise SystemExit(f"rye {' '.join(words)} --help: exit {done.returncode}\n{done.stderr}")
    command = Command(words, done.stdout)
    yield command
    for name in (name for name in command.subcommands if name != "help"):
        yield from walk(rye, (*words, name))
