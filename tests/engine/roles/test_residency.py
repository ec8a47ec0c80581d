"""The residency document: what it says, and one line for each way it can be wrong."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from engine.memory.sizes import GIB
from engine.roles.residency import Residency, ResidencyFileError, RoleClaim, parse_residency, read_residency

ROLE = '[[role]]\nname = "a"\nkind = "decider"\nclaim_gb = 1.5\n'


def test_the_shipped_document_names_the_three_roles_with_their_measured_claims():
    shipped = read_residency(Path(str(files("ops") / "residency.toml")))
    assert [(r.name, r.kind, r.claim_bytes / GIB, r.claim_source) for r in shipped.roles] == [
        ("decider", "decider", 3.0, "measured"),
        ("narrator", "narrator", 4.5, "measured"),
        ("shadow-reader", "shadow", 6.5, "measured"),
    ]
    assert (shipped.margin_bytes, shipped.engine_peak_bytes) == (None, None)


def test_defaults_and_order():
    text = "[memory]\nmargin_gb = 0\nengine_peak_gb = 2\n" + ROLE + ROLE.replace('"a"', '"b"') + "priority = -1\n"
    assert parse_residency(text, "f") == Residency(
        roles=(
            RoleClaim("b", "decider", 3 * GIB // 2, "declared", -1),
            RoleClaim("a", "decider", 3 * GIB // 2, "declared", 100),
        ),
        margin_bytes=0,
        engine_peak_bytes=2 * GIB,
    )


def test_a_byte_order_mark_is_no_part_of_the_document(tmp_path):
    (tmp_path / "residency.toml").write_text("\ufeff" + ROLE)
    assert read_residency(tmp_path / "residency.toml").roles[0].name == "a"


def test_an_empty_document_is_no_roles():
    assert parse_residency("", "f") == Residency(())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("role = 1\nmemory = = 2", ["f:", "not TOML", "line 2"]),
        ("memory = 3", ["memory = 3", "a table"]),
        ("role = 3", ["role = 3", "[[role]]"]),
        ("role = [3]", ["role = [3]", "[[role]]"]),
        ("[memory]\nmargin_gb = -1", ["memory.margin_gb = -1", "from 0"]),
        ("[memory]\nmargin_gb = nan", ["memory.margin_gb = nan", "a number of GiB"]),
        ("[memory]\nengine_peak_gb = inf", ["memory.engine_peak_gb = inf"]),
        ("[memory]\nmargin_gb = true", ["memory.margin_gb = True"]),
        ("[memory]\nmargin_gb = ' 4'", ["memory.margin_gb = ' 4'"]),
        ("[memory]\nmargn_gb = 4", ["memory.margn_gb = 4", "known: margin_gb, engine_peak_gb"]),
        ("margin_gb = 4", ["f: margin_gb = 4", "known: memory, role"]),
        (ROLE + ROLE, ["role[1].name = 'a'", "once"]),
        (ROLE.replace('"decider"', '"oracle"'), ["role[0].kind = 'oracle'", "decider, narrator, shadow"]),
        (ROLE.replace("1.5", '"1.5"'), ["role[0].claim_gb = '1.5'", "a number of GiB"]),
        (ROLE.replace("claim_gb = 1.5\n", ""), ["role[0].claim_gb is missing"]),
        (ROLE.replace('"a"', '"\\u001b[31m"'), ["role[0].name", "printable"]),
        (ROLE.replace('"a"', '"  "'), ["role[0].name", "printable"]),
        (ROLE + "priority = 1.5", ["role[0].priority = 1.5", "whole number"]),
        (ROLE + "claim_source = 'guessed'", ["role[0].claim_source = 'guessed'", "measured, declared"]),
        (ROLE + f"note = '{'x' * 500}'", ["role[0].note", "..."]),
    ],
)
def test_mistakes_are_one_line_with_file_key_value_and_what_is_allowed(text, words):
    with pytest.raises(ResidencyFileError) as caught:
        parse_residency(text, "f")
    message = str(caught.value)
    assert message.startswith("f: ")
    assert "\n" not in message
    assert len(message) < 200
    for word in words:
        assert word in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ResidencyFileError, match=r"gone\.toml: cannot be read: No such file"):
        read_residency(tmp_path / "gone.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ResidencyFileError, match=r"latin\.toml: is not UTF-8 text \(byte 2\)"):
        read_residency(tmp_path / "latin.toml")
