"""print what completes commands, experiments, names and keys with the tab key, for bash or zsh"""

import argparse
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

SCRIPT = r"""# Tab completion of fedddp, made by `fedddp completion`; made anew, it knows what was installed since.
_fedddp_words() {
    case $1 in
@WORDS@
    esac
}
_fedddp_candidates() { # of the word $1 behind the words $2...
    local word=$1 command="" before="" section each
    shift
    for each; do
        case $each in -* | *=*) ;; *) command=${command:-$each} ;; esac
        before=$each
    done
    [ -n "$command" ] || { _fedddp_words commands; return; }
    each=$(_fedddp_words "$command $before")
    [ -z "$each" ] || { echo "$each"; return; }
    case $word in
        -*) _fedddp_words "$command options" ;;
        *=*) _fedddp_words "${word%%=*}=" ;;
        *)
            _fedddp_words "$command"
            case " $(_fedddp_words settings) " in *" $command "*) ;; *) return ;; esac
            _fedddp_words keys
            for section in @SECTIONS@; do
                before=""
                for each; do case $each in "$section"=*) before=$each ;; esac; done
                _fedddp_words "${before:-$section keys}"
            done ;;
    esac
}
_fedddp() {
    local line=${COMP_LINE:0:$COMP_POINT} word found cut=""
    word=${line##* }
    line=${line% *}
    COMPREPLY=()
    case $word:${COMP_WORDBREAKS:-} in *=*:*=*) cut=${word%%=*}= ;; esac # bash replaces what stands behind the = alone
    for found in $(_fedddp_candidates "$word" $(echo "${line#* }" | grep -v '^fedddp$')); do
        case $found in
            "$word"*= | "$word"*/) COMPREPLY+=("${found#"$cut"}") ;;
            "$word"*) COMPREPLY+=("${found#"$cut"} ") ;;
        esac
    done
    [ ${#COMPREPLY[@]} -gt 0 ] && return
    case $word in *=*) line=${word%%=*}= ;; *) line="" ;; esac
    for found in $(compgen -f -- "${word#"$line"}"); do # files
        [ -d "$found" ] && found=$found/
        [ -n "$cut" ] || found=$line$found
        COMPREPLY+=("$found")
    done
}
complete -o nospace -F _fedddp fedddp
"""
ZSH = """autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh"])


def call(arguments: argparse.Namespace) -> int:
    from fedddp.core.registry import SECTIONS

    known = "\n".join(f"        {_quoted(key)}) echo {_quoted(' '.join(words))} ;;" for key, words in _words() if words)
    script = SCRIPT.replace("@WORDS@", known).replace("@SECTIONS@", " ".join(SECTIONS))
    print((ZSH if arguments.shell == "zsh" else "") + script, end="")
    return 0


def _words() -> Iterator[tuple[str, list[str]]]:
    """What may be typed, by where."""
    from fedddp.config.explain import ABOUT, of_class, of_run, of_section
    from fedddp.config.loading import experiments
    from fedddp.config.schema import PLAIN
    from fedddp.core import registry
    from fedddp.core.registry import SECTIONS

    parsers = dict(_parsers())
    yield "commands", list(parsers)
    names = {section: registry.names(section) for section in SECTIONS}
    plain = [one.key for section in PLAIN for one in of_section(section)]
    beside = [one.key for section in SECTIONS for one in of_section(section)]
    own = {
        f"{section}={name}": [one.key for one in of_class(section, registry.find(section, name))]
        for section in SECTIONS
        for name in registry.builtin(section)
    }
    every = sorted({*plain, *beside, *(key for keys in own.values() for key in keys), *(one.key for one in of_run())})
    anything = sorted({name for found in names.values() for name in found})
    first = {"explain": [*ABOUT, *every, *own, *anything, *experiments()], "check": anything}
    settings = [name for name, parser in parsers.items() if _takes_settings(parser)]
    yield "settings", settings
    yield "keys", [f"{key}=" for key in (*(one.key for one in of_run()), *plain, *beside, *SECTIONS)]
    for section in SECTIONS:
        yield f"{section}=", [f"{section}={name}" for name in names[section]]
        of_any = sorted({key for name, keys in own.items() for key in keys if name.startswith(f"{section}=")})
        yield f"{section} keys", [f"{key}=" for key in of_any]
    for name, keys in own.items():
        yield name, [f"{key}=" for key in keys]
    for name, parser in parsers.items():
        yield name, experiments() if name in settings else first.get(name, _choices(parser))
        yield from _options(name, parser)


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    from fedddp import commands

    for found in iter_modules(commands.__path__):
        parser = argparse.ArgumentParser(prog=found.name)
        import_module(f"fedddp.commands.{found.name}").add(parser)
        parser.add_argument("--debug", action="store_true")
        yield found.name, parser


def _takes_settings(parser: argparse.ArgumentParser) -> bool:
    return any("EXPERIMENT key=value" in str(action.metavar) for action in parser._actions)


def _choices(parser: argparse.ArgumentParser) -> list[str]:
    """Of the first word."""
    found = next((action.choices for action in parser._actions if not action.option_strings and action.choices), ())
    return [str(one) for one in found or ()]


def _options(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """All options, and for each with a choice what it may be."""
    options = [(option, action) for action in parser._actions for option in action.option_strings]
    yield f"{name} options", [option for option, _ in options if option.startswith("--")]
    for option, action in options:
        yield f"{name} {option}", [str(one) for one in action.choices or ()]


def _quoted(text: str) -> str:
    return f"'{text}'"
