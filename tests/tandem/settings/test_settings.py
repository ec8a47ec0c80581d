"""Settings: every kind's edges, the layers and their origins, aliases, and the words of a refusal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandem.exits import CommandError, Exit
from tandem.settings.kinds import Gib, Real, Whole
from tandem.settings.origins import DEFAULT, Flags, resolve
from tandem.settings.table import BY_NAME, TABLE, Setting

GIB = 1 << 30


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("TANDEM_PARALLEL", "4", 4),
        ("TANDEM_PARALLEL", "", 1),
        ("TANDEM_QUEUE_LIMIT", "0", 0),
        ("TANDEM_DECODE_SHARE", "0", 0.0),
        ("TANDEM_DECODE_SHARE", ".25", 0.25),
        ("TANDEM_PARALLEL_FLOOR_GB", "1.5", 3 * GIB // 2),
        ("TANDEM_KV_POOL", "off", False),
        ("TANDEM_DEVICE", "cuda:1", "cuda:1"),
        ("TANDEM_ALLOWED_HOSTS", "box, box.lan", ("box", "box.lan")),
        ("TANDEM_ALLOWED_HOSTS", "Box.LAN.:8000,box.lan,[::1]:80,10.0.0.1", ("box.lan", "::1", "10.0.0.1")),
        ("TANDEM_ALLOWED_HOSTS", "b\u00fccher.example", ("xn--bcher-kva.example",)),
        ("TANDEM_ALLOWED_ORIGINS", "*", ("*",)),
        ("TANDEM_ALLOWED_ORIGINS", "http://a.example/", ("http://a.example",)),
        ("TANDEM_ALLOWED_ORIGINS", "HTTPS://Chat.Example:443, https://chat.example", ("https://chat.example",)),
        (
            "TANDEM_ALLOWED_ORIGINS",
            "http://a.example:80,http://a.example:443",
            ("http://a.example", "http://a.example:443"),
        ),
        ("TANDEM_ALLOWED_ORIGINS", "http://[::0001]:3000/", ("http://[::1]:3000",)),
        ("TANDEM_ALLOWED_ORIGINS", "https://b\u00fccher.example", ("https://xn--bcher-kva.example",)),
        (
            "TANDEM_ALLOWED_ORIGINS",
            "app://obsidian.md,chrome-extension://abcdef,null",
            ("app://obsidian.md", "chrome-extension://abcdef", "null"),
        ),
        ("QSE_PARALLEL", "3", 3),
        ("QWEN38_SIDE_SLOT0_WAIT_S", "5", 5.0),
        ("QSE_ROLE_UNLOAD_LAYA", "on", True),
    ],
)
def test_a_value_parses(variable: str, text: str, value: object) -> None:
    resolved = resolve(environ={variable: text})
    name = next(s.name for s in TABLE if variable in s.names)
    assert getattr(resolved.settings, name) == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TANDEM_PARALLEL", " 4"),
        ("TANDEM_PARALLEL", "4.0"),
        ("TANDEM_PARALLEL", "yes"),
        ("TANDEM_PARALLEL", "0"),
        ("TANDEM_PARALLEL", "-1"),
        ("TANDEM_PARALLEL", "1_0"),
        ("TANDEM_PARALLEL", "\u0664"),
        ("TANDEM_PARALLEL", "9" * 400),
        ("TANDEM_DECODE_SHARE", "nan"),
        ("TANDEM_DECODE_SHARE", "1"),
        ("TANDEM_QUEUE_TIMEOUT", "inf"),
        ("TANDEM_QUEUE_TIMEOUT", "9e999"),
        ("TANDEM_DRAIN_TIMEOUT", "1e308"),
        ("TANDEM_MAX_LEN", "1000000001"),
        ("TANDEM_PARALLEL_FLOOR_GB", "1e300"),
        ("TANDEM_PARALLEL_FLOOR_GB", "-1"),
        ("TANDEM_KV_POOL", "yes"),
        ("TANDEM_DEVICE", "gpu"),
        ("TANDEM_PORT", "65536"),
        ("TANDEM_LOG_FORMAT", "xml"),
        ("TANDEM_ALLOWED_HOSTS", "http://box.lan"),
        ("TANDEM_ALLOWED_HOSTS", "box.lan/path"),
        ("TANDEM_ALLOWED_HOSTS", "box.lan:http"),
        ("TANDEM_ALLOWED_HOSTS", "*"),
        ("TANDEM_ALLOWED_HOSTS", "*.lan"),
        ("TANDEM_ALLOWED_ORIGINS", "a.example"),
        ("TANDEM_ALLOWED_ORIGINS", "a.example:8080"),
        ("TANDEM_ALLOWED_ORIGINS", "http://"),
        ("TANDEM_ALLOWED_ORIGINS", "http://a.example/chat"),
        ("TANDEM_ALLOWED_ORIGINS", "http://a.example?x"),
        ("TANDEM_ALLOWED_ORIGINS", "http://me@a.example"),
        ("TANDEM_ALLOWED_ORIGINS", "http://a.example:99999"),
        ("TANDEM_ALLOWED_ORIGINS", "http://*.example"),
        ("TANDEM_ALLOWED_ORIGINS", "http://a.example,,"),
        ("QSE_PARALLEL", "two"),
    ],
)
def test_a_value_that_does_not_parse_is_one_line(variable: str, text: str) -> None:
    with pytest.raises(CommandError) as refused:
        resolve(environ={variable: text})
    setting = next(s for s in TABLE if variable in s.names)
    assert refused.value.code == Exit.USAGE
    assert refused.value.message == f"{variable} is {text!r}; allowed: {setting.kind.allowed}"


def test_empty_is_unset_for_every_setting_in_every_layer(folders: Path, tmp_path: Path) -> None:
    plain = resolve(environ={})
    (folders / "profiles").mkdir()
    named = tmp_path / "named.env"
    empty = "".join(f"{name}=\n" for setting in TABLE for name in setting.names)
    for path in (folders / "serve.env", folders / "local.env", folders / "profiles" / "mine.env", named):
        path.write_text(empty)
    flags = Flags({setting.name: "" for setting in TABLE}, profile="mine", env_file=named)
    resolved = resolve(flags, {name: "" for setting in TABLE for name in setting.names})
    assert resolved.settings == plain.settings
    assert set(resolved.origins.values()) == {DEFAULT}
    assert resolved.notes == ()


@pytest.mark.parametrize("setting", [s for s in TABLE if isinstance(s.kind, Whole | Real | Gib)], ids=lambda s: s.name)
def test_a_number_in_no_form_of_a_number_is_one_line(setting: Setting) -> None:
    for text in (" 4", "4 ", "yes", "4,0", "0x4", "--4"):
        with pytest.raises(CommandError) as refused:
            resolve(environ={setting.variable: text})
        assert refused.value.message == f"{setting.variable} is {text!r}; allowed: {setting.kind.allowed}"
    assert re.search(r" from [0-9]+ to [0-9.]+$", setting.kind.allowed), "no limit is said"


def test_each_layer_beats_the_next(folders: Path, tmp_path: Path) -> None:
    (folders / "profiles").mkdir()
    named = tmp_path / "named.env"
    sources = [folders / "serve.env", folders / "profiles" / "mine.env", folders / "local.env", named]
    for count, path in enumerate(sources, start=2):
        path.write_text(f"# a comment\nTANDEM_PARALLEL={count}\n")
    weakest_first = ["serve.env", "profile", "local.env", "--env-file", "environment", "flag"]
    seen = []
    for layer in range(len(weakest_first)):
        if layer < 4:
            for path in sources[layer + 1 :]:
                path.unlink(missing_ok=True)
            for count, path in enumerate(sources[: layer + 1], start=2):
                path.write_text(f"# a comment\nTANDEM_PARALLEL={count}\n")
        else:
            for count, path in enumerate(sources, start=2):
                path.write_text(f"TANDEM_PARALLEL={count}\n")
        flags = Flags(
            {"parallel": "7"} if layer == 5 else {},
            profile="mine" if layer >= 1 else None,
            env_file=named if layer >= 3 else None,
        )
        resolved = resolve(flags, {"TANDEM_PARALLEL": "6"} if layer >= 4 else {})
        seen.append((resolved.origins["parallel"].layer, resolved.settings.parallel))
    assert seen == [(name, count) for count, name in enumerate(weakest_first, start=2)]


def test_the_origin_names_file_and_line(folders: Path) -> None:
    (folders / "serve.env").write_text("\n\nQSE_PARALLEL=2            # two at once\n")
    resolved = resolve(environ={})
    assert str(resolved.origins["parallel"]) == f"serve.env ({folders / 'serve.env'}:3)"
    assert resolved.origins["max_len"] is DEFAULT
    assert resolved.notes == (
        f"QSE_PARALLEL is an older name of TANDEM_PARALLEL (set in serve.env ({folders / 'serve.env'}:3))",
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_tandem_name_wins_within_a_layer(order: tuple[int, ...]) -> None:
    pairs = [("TANDEM_PARALLEL", "4"), ("QSE_PARALLEL", "3"), ("QWEN38_PARALLEL", "2")]
    assert resolve(environ=dict(pairs[i] for i in order)).settings.parallel == 4
    assert resolve(environ=dict(pairs[i] for i in order if i)).settings.parallel == 3


def test_a_stronger_layers_alias_beats_a_weaker_layers_name(folders: Path) -> None:
    (folders / "serve.env").write_text("TANDEM_PARALLEL=4\n")
    assert resolve(environ={"QWEN38_PARALLEL": "2"}).settings.parallel == 2


def test_an_empty_value_lets_the_weaker_layer_through(folders: Path) -> None:
    (folders / "serve.env").write_text("TANDEM_PARALLEL=4\n")
    assert resolve(Flags({"parallel": ""}), {"TANDEM_PARALLEL": ""}).settings.parallel == 4


def test_an_unknown_setting_is_told_with_the_near_one() -> None:
    notes = resolve(environ={"TANDEM_PARALEL": "4", "QSE_OTHER_PROGRAM": "1", "TANDEM_PROFILE": ""}).notes
    assert notes == ("TANDEM_PARALEL is no setting (set in environment); did you mean TANDEM_PARALLEL?",)


def test_a_setting_that_nothing_acts_on_is_told() -> None:
    notes = resolve(environ={"TANDEM_SIDE_CARRY": "off"}).notes
    assert notes == ("TANDEM_SIDE_CARRY is set (environment), and nothing acts on it yet",)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TANDEM_MODEL= plain ", "plain"),
        ("export TANDEM_MODEL=a.gguf # note", "a.gguf"),
        ("TANDEM_MODEL='with # and space'", "with # and space"),
        ('TANDEM_MODEL="two words" # note', "two words"),
        ("TANDEM_MODEL=a#b", "a#b"),
    ],
)
def test_a_line_of_a_file(folders: Path, text: str, value: str) -> None:
    (folders / "local.env").write_text(text + "\n")
    assert resolve(environ={}).settings.model == value


@pytest.mark.parametrize("text", ["TANDEM_PARALLEL", "2=TANDEM_PARALLEL", "TANDEM_MODEL='open", "[serve]"])
def test_a_line_that_is_no_setting_names_its_place(folders: Path, text: str) -> None:
    (folders / "serve.env").write_text(f"# head\n{text}\n")
    with pytest.raises(CommandError, match=r"serve\.env:2: ") as refused:
        resolve(environ={})
    assert refused.value.code == Exit.USAGE


def test_a_byte_order_mark_is_no_part_of_the_first_line(folders: Path) -> None:
    (folders / "serve.env").write_text("\ufeffTANDEM_PARALLEL=2\n")
    assert resolve(environ={}).settings.parallel == 2


def test_a_quoted_value_keeps_its_space_and_is_refused(folders: Path) -> None:
    (folders / "serve.env").write_text('TANDEM_PARALLEL=" 4"\n')
    with pytest.raises(CommandError, match=r"TANDEM_PARALLEL is ' 4' \(.*serve\.env:1\); allowed: a whole number"):
        resolve(environ={})


@pytest.mark.parametrize("name", ["nowhere", "../serve", "a/b", ""])
def test_an_unknown_profile_names_the_known_ones(name: str) -> None:
    if not name:
        assert resolve(Flags({}, profile=name), {}).settings.parallel == 1
        return
    with pytest.raises(CommandError, match="there are: agents, shared, small"):
        resolve(Flags({}, profile=name), {})


def test_a_profile_may_be_named_by_a_file(folders: Path) -> None:
    (folders / "serve.env").write_text("TANDEM_PROFILE=small\nTANDEM_MAX_LEN=999\n")
    settings = resolve(environ={}).settings
    assert (settings.parallel, settings.max_len) == (2, 4096)


def test_a_missing_env_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read") as refused:
        resolve(Flags({}, env_file=tmp_path / "none.env"), {})
    assert refused.value.code == Exit.USAGE


def test_a_hard_floor_above_the_floor_is_refused() -> None:
    with pytest.raises(CommandError, match=r"TANDEM_KV_HARD_FLOOR_GB \(6 GiB\) is above TANDEM_PARALLEL_FLOOR_GB"):
        resolve(environ={"TANDEM_KV_HARD_FLOOR_GB": "6", "TANDEM_PARALLEL_FLOOR_GB": "5"})


def test_the_table_is_whole() -> None:
    for setting in TABLE:
        assert setting.help.endswith("."), setting.name
        assert BY_NAME[setting.name] is setting
    names = [name for setting in TABLE for name in setting.names]
    assert len(names) == len(set(names))
