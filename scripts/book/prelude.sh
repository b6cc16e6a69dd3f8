# What the setup comments of pages may use. Sourced by the shell of each page.

# page_block PAGE LANGUAGE NUMBER: prints a fenced block of a page; numbers count from 0.
page_block() { python3 -B "$RYE_REPOSITORY/scripts/book/pages.py" "$@"; }

# python_tool ID: writes and signs a Python tool whose body is on standard input.
python_tool() {
  mkdir -p ".ai/tools/$(dirname "$1")"
  {
    printf '__version__ = "1.0.0"\n__tool_type__ = "python"\n__executor_id__ = "rye/core/runtimes/python/function"\n'
    printf '__category__ = "%s"\n__tool_name__ = "%s"\n__tool_description__ = "%s"\n\n' "$(dirname "$1")" "$(basename "$1")" "$1"
    cat
  } >".ai/tools/$1.py"
  rye -q sign tool "$1" >/dev/null
}

# yaml_tool ID: writes and signs a YAML tool whose body is on standard input.
yaml_tool() {
  mkdir -p ".ai/tools/$(dirname "$1")"
  { printf 'version: "1.0.0"\ncategory: %s\ndescription: %s\n' "$(dirname "$1")" "$1" && cat; } >".ai/tools/$1.yaml"
  rye -q sign tool "$1" >/dev/null
}

# directive ID PROMPT METADATA: writes and signs a directive; the rest of its block (inputs, outputs, process) is on standard input.
directive() {
  mkdir -p ".ai/directives/$(dirname "$1")"
  {
    printf '# %s\n\n```xml\n<directive name="%s" version="1.0.0">\n  <metadata>\n' "$1" "$(basename "$1")"
    printf '    <description>%s</description>\n    <category>%s</category>\n    <author>ada</author>\n%s\n  </metadata>\n' "$2" "$(dirname "$1")" "$3"
    cat
    printf '</directive>\n```\n\n%s\n' "$2"
  } >".ai/directives/$1.md"
  rye -q sign directive "$1" >/dev/null
}

# other_home NAME: another person with an empty home; goes to their `~/shop`. Pages show every home as `~`.
other_home() {
  export USER=$1 LOGNAME=$1 HOME=$RYE_HOMES/$1
  mkdir -p "$HOME/shop" && cd "$HOME/shop"
}

# wait_threads: waits until no thread of the project runs.
wait_threads() { rye -q thread wait $(rye thread list --json | grep -o 'thread-[0-9a-f]\{12\}' | sort -u) >/dev/null; }

# bind SHOWN ACTUAL: an id of the page stands for one of this run.
bind() { echo "bind $1 $2"; }

# python_module ID: writes and signs a Python file that other tools import; its body is on standard input.
python_module() {
  mkdir -p ".ai/tools/$(dirname "$1")"
  {
    printf '__version__ = "1.0.0"\n__tool_type__ = "python"\n__category__ = "%s"\n__tool_name__ = "%s"\n' "$(dirname "$1")" "$(basename "$1")"
    printf '__tool_description__ = "%s"\n\n' "$1"
    cat
  } >".ai/tools/$1.py"
  rye -q sign tool "$1" >/dev/null
}
