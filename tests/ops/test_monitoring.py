"""The alert rules and the board name only metrics and labels that `/metrics` really has.

What the rules do with them is tested by promtool (`make test-monitoring`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem.reference import ROOT
from tests.ops.exposition import exposition

FOLDER = ROOT / "ops" / "monitoring"
OF_PROMETHEUS = {"up": {"job", "instance"}}
ADDED_BY_SCRAPES = {"job", "instance", "le"}


def yaml_file(name: str) -> Any:
    return msgspec.yaml.decode((FOLDER / name).read_bytes())


@pytest.fixture(scope="module")
def shown() -> dict[str, set[str]]:
    """Every series name of a scrape with its labels."""
    found: dict[str, set[str]] = dict(OF_PROMETHEUS)
    for family in text_string_to_metric_families(exposition()):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        for suffix in suffixes:
            found.setdefault(family.name + suffix, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def rules() -> Iterator[tuple[str, str]]:
    """The name and the expression of every alert."""
    for group in yaml_file("alerts.yml")["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def panels() -> Iterator[tuple[str, str]]:
    """The title and each expression of every panel, and the variables' queries."""
    board = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                yield panel["title"], f"sum by ({label}) ({target['expr']})"
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"].removeprefix("label_values(").partition(",")[0]


def metrics_of(expression: str) -> set[str]:
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\bby \([^)]*\)|\[[^\]]*\]', " ", expression)
    return set(re.findall(r"\b(?:tandem_\w+|process_\w+|up)\b", bare))


def labels_of(expression: str) -> set[str]:
    chosen = re.findall(r'(\w+)(?:=~|!~|!=|=)"', expression)
    grouped = [word for words in re.findall(r"\bby \(([^)]*)\)", expression) for word in re.split(r",\s*", words)]
    return {*chosen, *grouped} - ADDED_BY_SCRAPES


@pytest.mark.parametrize("source", [rules, panels])
def test_every_expression_names_what_is_there(
    shown: dict[str, set[str]], source: Callable[[], Iterator[tuple[str, str]]]
) -> None:
    wrong = []
    for name, expression in source():
        metrics = metrics_of(expression)
        assert metrics, f"{name}: no metric found in {expression}"
        labels = set().union(*(shown.get(metric, set()) for metric in metrics))
        wrong += [f"{name}: no metric {metric}" for metric in metrics - set(shown)]
        wrong += [f"{name}: no label {label}" for label in labels_of(expression) - labels]
    assert wrong == []


def test_every_alert_has_a_history_a_severity_and_words() -> None:
    histories = (FOLDER / "alerts.test.yml").read_text(encoding="utf-8")
    names = [name for name, _ in rules()]
    assert len(names) == len(set(names))
    for group in yaml_file("alerts.yml")["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert set(rule["annotations"]) == {"summary", "description"}
            assert "$labels.instance" in rule["annotations"]["summary"]
            family = re.sub(r"Under.*", "", rule["alert"])
            assert family in histories, rule["alert"]


def test_the_scrape_configuration_reads_the_rules_and_the_default_port() -> None:
    config = yaml_file("prometheus.yml")
    assert [(FOLDER / name).is_file() for name in config["rule_files"]] == [True]
    (job,) = config["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("tandem", "/metrics")
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]


def test_the_board_has_distinct_panels_that_do_not_overlap() -> None:
    board = json.loads(Path(FOLDER / "grafana.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith(".")
