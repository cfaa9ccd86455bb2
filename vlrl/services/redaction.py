"""Secrets stay out of what a run writes: references to environment variables in configs, and blanks in
everything else.

**In configs.** `${NAME}` is the environment variable NAME, looked up when the plug-in is built. A written-out
secret becomes a reference (`without_secrets`): to the variable that has this value, else by its own key if
that names a variable (`engine.env.HF_TOKEN`), else by VLRL_ and its place (`VLRL_ENGINE_URL`).

**In text.** `blank` puts *** for values seen in a config or in an environment variable with a secret's name,
values behind such a name, credentials in URLs and headers, and known forms of tokens. A name is a secret's by
its last words (`is_secret`): token, password, api_key ...
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

BLANK = "***"
_REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]+)\}")
_ALONE = {
    "password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials", "apikey",
    "authorization", "cookie", "bearer",
    "dsn", "jwt", "auth", "sas",
}  # fmt: skip
_BEFORE_KEY = {
    "api", "access", "secret", "private", "account", "encryption", "license", "signing", "master", "service",
    "auth", "ssh", "storage", "shared",
    "openai", "anthropic", "wandb", "azure", "subscription", "client",
}  # fmt: skip
_OF_A_MODEL = {
    "stop", "eos", "bos", "pad", "image", "video", "audio", "mask", "unk", "special", "start", "end", "think",
    "sep", "cls", "vision", "box",
    "answer", "per", "last", "first", "every", "each", "next", "new", "by",
}  # fmt: skip
_FORMS = [  # group "secret" is what is blanked
    re.compile(form, re.DOTALL)
    for form in (
        r"(?P<secret>-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))",
        (
            r"(?P<secret>\b(?:sk-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|"
            r"github_pat_\w{20,}|"
            r"glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}))"
        ),
        (
            r"(?P<secret>\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|"
            r"npm_[A-Za-z0-9]{30,}|r8_[A-Za-z0-9]{20,}))"
        ),
        r"://[^/@\s:]*:(?P<secret>[^/@\s]+)@",
        r"://(?P<secret>[^/@\s:]{16,})@",
        r"(?i)[?&](?:[\w-]*(?:token|sig|signature|key|password|secret|credential))=(?P<secret>[^&\s\"']+)",
        r"(?i)\b(?:Bearer|Basic)\s+(?P<secret>[^\s\"',;]{6,})",
    )
]
_NAMED = re.compile(
    r"(?P<key>[A-Za-z_][\w.-]*)[\"']?\s*[=:]\s*[\"']?(?:(?:Bearer|Basic|Token)\s+)?(?P<secret>[^\s\"'&,;"
    r"})\]]+)"
)
_FLAG = re.compile(r"(?P<key>--[A-Za-z][\w-]*)\s+(?P<secret>[^\s-]\S*)")
_HARMLESS = re.compile(r"\*\*\*.*|\$\{.*|[-+\d.eE]{1,7}|(?i:true|false|null|none|bearer|basic)")
_NO_SECRET = re.compile(r"|\*\*\*|(?i:true|false|null|none)")
_SHORTEST = 6  # characters of a value that is blanked wherever it is met

_seen: dict[str, str] = {}  # secret values of this process -> the environment variable that holds one, or ""


def is_secret(name: str) -> bool:
    """Whether a key, an environment variable, a header or a flag of this name holds a secret."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.rpartition(".")[2]).lower())
    if not words:
        return False
    before, last = words[-2] if len(words) > 1 else "", words[-1]
    if last == "id" and before == "key":
        return True
    if last == "key":
        return before in _BEFORE_KEY
    return (
        last in _ALONE or (last == "token" and before not in _OF_A_MODEL) or (last == "pass" and bool(before))
    )


def expand(value: Any) -> Any:
    """The value with `${NAME}` replaced from the environment, in strings, maps and lists. Raises
    LookupError(NAME) for a variable that is not set."""
    if isinstance(value, str):
        return _REFERENCE.sub(_look_up, value)
    if isinstance(value, Mapping):
        return {key: expand(inner) for key, inner in value.items()} if _refers(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(expand, value)) if _refers(value) else value
    return value


def _refers(value: Any) -> bool:
    if isinstance(value, str):
        return _REFERENCE.search(value) is not None
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    return any(map(_refers, inner))


def _look_up(match: re.Match[str]) -> str:
    name = match[1]
    if name not in os.environ:
        raise LookupError(name)
    if is_secret(name) or name.startswith("VLRL_"):
        _remember(os.environ[name], name)
    return os.environ[name]


def _remember(value: str, variable: str = "") -> None:
    if len(value) >= _SHORTEST:
        _seen[value] = _seen.get(value) or variable


def _known() -> dict[str, str]:
    for name, value in os.environ.items():
        if (
            is_secret(name)
            and name not in ("PWD", "OLDPWD")
            and value not in _seen
            and not _HARMLESS.fullmatch(value)
            and not os.path.exists(value)
        ):
            _remember(value, name)
    return _seen


def without_secrets(tree: Any, named: Collection[str] = ()) -> tuple[Any, dict[str, str]]:
    """A copy of a config tree with references in place of secrets, and {environment variable: dotted path} of
    these references.

    `named`: top-level maps whose keys are names of entries and no fields (`loss_terms: {token: ...}`): such a
    key makes no secret.
    """
    cleaner = _Cleaner(frozenset(named))
    cleaned = cleaner.clean(tree, "", "")
    return cleaned, {name: path for name, (_, path) in cleaner.references.items()}


class _Cleaner:
    """Replaces the secrets of one tree. `references`: variable -> (secret, path)."""

    def __init__(self, named: frozenset[str]) -> None:
        self.named = named
        self.references: dict[str, tuple[str, str]] = {}

    def clean(self, value: Any, path: str, key: str) -> Any:
        """The value at `path`, whose name is `key`, without secrets."""
        if isinstance(value, Mapping):
            return {
                name: self.clean(inner, f"{path}.{name}".lstrip("."), str(name))
                for name, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            flags = [
                "",
                *(
                    item if isinstance(item, str) and item.startswith("-") and "=" not in item else ""
                    for item in value
                ),
            ]
            return [self.clean(item, path, flag or key) for flag, item in zip(flags, value, strict=False)]
        if isinstance(value, (bool, type(None))) or not isinstance(value, (str, int, float)):
            return value
        text = str(value)
        if (
            is_secret(key)
            and not self._is_entry(path)
            and not _REFERENCE.search(text)
            and not _NO_SECRET.fullmatch(text)
        ):
            is_count = not isinstance(value, str) and key.lower().endswith("token")
            return value if is_count else self._reference(text, path, key)
        if isinstance(value, str):
            out, done = "", 0
            for start, end in _spans(value):
                out, done = out + value[done:start] + self._reference(value[start:end], path, ""), end
            return out + value[done:]
        return value

    def _is_entry(self, path: str) -> bool:
        parts = path.split(".")
        parts = parts[2:] if parts[0] == "phases" else parts
        return len(parts) == 2 and parts[0] in self.named

    def _reference(self, secret: str, path: str, key: str) -> str:
        name = _known().get(secret) or (
            key
            if re.fullmatch(r"[A-Z_][A-Z0-9_]+", key)
            else "VLRL_" + re.sub(r"[^A-Z0-9]+", "_", path.upper())
        )
        while self.references.get(name, (secret, ""))[0] != secret:
            name += "_2"
        self.references.setdefault(name, (secret, path))
        _remember(secret)
        return f"${{{name}}}"


def _spans(text: str) -> list[tuple[int, int]]:
    """Where the secrets of a text are: (start, end), in order, disjoint."""
    found = [match.span("secret") for form in _FORMS for match in form.finditer(text)]
    for form in (_NAMED, _FLAG):
        found += [match.span("secret") for match in form.finditer(text) if is_secret(match["key"])]
    found = sorted(span for span in found if not _HARMLESS.fullmatch(text[slice(*span)]))
    out: list[tuple[int, int]] = []
    for start, end in found:
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def blank(text: str) -> str:
    """A text with *** in place of its secrets."""
    for value in sorted(_known(), key=len, reverse=True):
        text = text.replace(value, BLANK)
    for start, end in reversed(_spans(text)):
        text = text[:start] + BLANK + text[end:]
    return text


def blank_words(words: Sequence[str]) -> list[str]:
    """The words of a command line with *** in place of secrets, also of those that follow a flag."""
    flags = ["", *words]
    secret = [flag.startswith("-") and "=" not in flag and is_secret(flag) for flag in flags]
    return [
        BLANK if after and not word.startswith("-") else blank(word)
        for after, word in zip(secret, words, strict=False)
    ]


def blank_all(value: Any, key: str = "") -> Any:
    """A copy of plain data with *** in place of secrets."""
    if isinstance(value, Mapping):
        return {name: blank_all(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [blank_all(inner, key) for inner in value]
    if not isinstance(value, str):
        return value
    return BLANK if value and is_secret(key) and not _HARMLESS.fullmatch(value) else blank(value)


def log_record(*arguments: Any, **named: Any) -> logging.LogRecord:
    """A log record with its secrets blanked, for `logging.setLogRecordFactory`."""
    record = logging.LogRecord(*arguments, **named)
    message = record.getMessage()
    blanked = blank(message)
    if blanked != message:
        record.msg, record.args = blanked, ()
    return record
