"""The bench against a scripted engine: what it measures, what it proves, and what it calls invalid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import ServiceConfig
from engine.protocol.reports import Proof
from tandem.bench import proof
from tandem.bench.differences import difference_at, first_difference
from tandem.bench.load import read_prompts
from tandem.cli import run
from tandem.client.chat_stream import TokenLogprob, TopLogprob
from tandem.exits import CommandError, Exit
from tests.support.served import served
from tests.tandem.busy_engine import GAP, BusyEngine


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "SAMPLE_S", 0.02)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A busy engine's address; parametrise with its `flawed`."""
    with served(BusyEngine(slots=4, flawed=getattr(request, "param", False)), ServiceConfig()) as there:
        yield there.url


def bench(url: str, *words: str) -> list[str]:
    return ["bench", *words, "--url", url, "--tokens", "24"]


def test_levels_are_proven_and_texts_identical(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    assert run([*bench(url, "c1", "c2", "c4", "--count", "4"), "--json", "--out", str(out)]) == Exit.OK
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(out.read_text())
    assert report["valid"] is True
    assert (report["prompts"], report["tokens"]) == (4, 24)
    assert report["engine"]["parallel"] == 4
    for level in report["levels"]:
        c = level["c"]
        assert level["valid"] is True
        assert level["why_invalid"] is None
        assert (level["requests"], level["identical"], level["of"]) == (4, 4, 4)
        assert level["differences"] == []
        assert level["proof"]["peak_decoding"] == c
        assert set(level["proof"]["rounds"]) <= {str(size) for size in range(1, c + 1)}
        assert level["total_tok_s"] > 0
        assert level["ttft_s"]["last"] >= level["ttft_s"]["median"] > 0
    assert [level["c"] for level in report["levels"]] == [1, 2, 4]
    assert report["levels"][0]["ratio_to_c1"] == 1.0


def test_a_level_above_the_slots_is_invalid_and_names_both_counts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*bench(url, "c1", "c8", "--count", "2"), "--json"]) == Exit.REFUSED
    report = json.loads(capsys.readouterr().out)
    assert report["valid"] is False
    c1, c8 = report["levels"]
    assert c1["valid"] is True
    assert (c8["valid"], c8["requests"]) == (False, 0)
    assert "needs 8 slots" in c8["why_invalid"]
    assert "runs 4" in c8["why_invalid"]


def test_a_level_with_too_few_prompts_is_invalid(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*bench(url, "c4", "--count", "3"), "--json"]) == Exit.REFUSED
    assert json.loads(capsys.readouterr().out)["levels"][0]["why_invalid"] == "c4 needs 4 prompts and there are 3"


@pytest.mark.parametrize("url", [True], indirect=True)
def test_a_text_that_differs_is_listed_with_its_token_and_gap(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*bench(url, "c1", "c2", "--count", "2"), "--json"]) == Exit.FAILURE
    c1, c2 = json.loads(capsys.readouterr().out)["levels"]
    assert (c1["identical"], c2["identical"], c2["of"]) == (2, 0, 2)
    assert c2["valid"] is True
    for index, difference in enumerate(c2["differences"]):
        assert difference["prompt"] == index
        assert difference["position"] == 3
        assert difference["here"] == "#"
        assert difference["alone"] != "#"
        assert difference["gap_nats"] == pytest.approx(GAP)


@pytest.mark.parametrize("url", [True], indirect=True)
def test_exact_shows_differences_and_no_times(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bench(url, "exact", "c2", "--count", "2")) == Exit.FAILURE
    out = capsys.readouterr().out
    assert "0/2" in out
    assert "differs at token 3" in out
    assert "tok/s" not in out


def test_the_table_shows_every_level(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bench(url, "c1", "c2", "c8", "--count", "2")) == Exit.REFUSED
    out = capsys.readouterr().out
    assert "tok/s" in out
    assert "2/2" in out
    assert "c8 is invalid: c8 needs 8 slots" in " ".join(out.split())


def test_prompts_of_a_file(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("One.\n\nTwo.\n")
    assert run([*bench(url, "c2", "--prompts", str(prompts)), "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["prompts"] == 2


def test_engine_flags_do_not_reach_an_engine_that_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*bench(url, "c1"), "--max-len", "512"]) == Exit.USAGE
    assert "--max-len" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("c", "peak", "rounds", "why"),
    [
        (4, 4, {"4": 9, "1": 2}, None),
        (4, 3, {"3": 9}, "no health snapshot shows 4"),
        (2, 3, {"3": 9}, "up to 3 slots wrote at once"),
        (2, 2, {"2": 5, "4": 1}, "up to 4 slots wrote at once"),
        (1, 0, {}, "no health snapshot shows 1"),
    ],
)
def test_what_proves_a_level(c: int, peak: int, rounds: dict[str, int], why: str | None) -> None:
    found = proof.why_unproven(c, Proof(peak_decoding=peak, rounds=rounds))
    assert (found is None) if why is None else (found is not None and why in found)


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("One.\nTwo.\n", encoding="utf-8-sig")
    assert read_prompts(prompts, None) == ["One.", "Two."]


def test_the_packaged_prompts_are_distinct() -> None:
    prompts = read_prompts(None, None)
    assert len(prompts) >= 16
    assert len(set(prompts)) == len(prompts)


def test_an_empty_prompt_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(CommandError, match="has no prompt"):
        read_prompts(tmp_path / "empty", None)


@pytest.mark.parametrize(
    ("alone", "here", "at"), [("abc", "abd", 2), ("abc", "ab", 2), ("", "x", 0), ("same", "same", 4)]
)
def test_the_first_difference(alone: str, here: str, at: int) -> None:
    assert first_difference(alone, here) == at


def token(text: str, second: str, gap: float) -> TokenLogprob:
    return TokenLogprob(text, -1.0, [TopLogprob(text, -1.0), TopLogprob(second, -1.0 - gap)])


def test_a_difference_inside_a_token_names_the_tokens() -> None:
    written = [token("The", "A", 2.0), token(" harbour", " harness", 0.01), token(" sleeps", " wakes", 1.0)]
    found = difference_at(5, written, "The harbour sleeps", "The harness wakes")
    assert (found.prompt, found.position, found.alone, found.here) == (5, 1, " harbour", " harness")
    assert found.gap_nats == pytest.approx(0.01)


def test_a_gap_is_not_named_where_the_alone_text_did_not_come_again() -> None:
    found = difference_at(0, [token("A", "B", 0.5), token("x", "y", 0.5)], "Ab", "Ac")
    assert (found.position, found.gap_nats) == (1, None)
